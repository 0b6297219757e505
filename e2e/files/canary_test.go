package files

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/microvmd/microvm/e2e/harness"
)

// canaryName is a name that no guest has.
const canaryName = "microvm-e2e-canary"

// canary is a secret that lies in files of the host: where a guest looks for it,
// beside the jails and in the jail itself.
type canary struct {
	secret string
	places []string
	host   []string // what is watched for changes beside them
	jail   string   // of which only the names and the canary are the host's alone
}

func newCanary(t *testing.T, b *box) *canary {
	t.Helper()
	random := make([]byte, 16)
	_, _ = rand.Read(random)
	state := b.d.StateDir
	c := &canary{
		secret: "canary-" + hex.EncodeToString(random),
		jail:   filepath.Join(state, "jails", "firecracker", filepath.Base(harness.Cgroup(b.d.Instance, b.id)), "root"),
	}
	for _, dir := range []string{"/etc", "/tmp", "/", state, filepath.Join(state, "jails"), c.jail} {
		c.places = append(c.places, filepath.Join(dir, canaryName))
	}
	for _, dir := range []string{"bin", "kernel", "guest", "images", "boot"} {
		c.host = append(c.host, filepath.Join(state, dir))
	}
	c.host = append(c.host, "/etc", harness.Programs, harness.Installed+"/bin", harness.Installed+"/kernel", harness.Installed+"/guest", harness.Installed+"/images")
	for _, path := range c.places {
		if err := os.WriteFile(path, []byte(c.secret+"\n"), 0o644); err != nil { //nolint:gosec // the easier it is to read, the better
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(path) })
	}
	b.spy = &spy{secret: []byte(c.secret)}
	return c
}

// hashed is the size up to which a file is hashed; of larger ones size, inode and
// times tell.
const hashed = 8 << 20

// manifest has a line for each file of the host that nothing may change.
func (c *canary) manifest(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	look := func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		more := ""
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			more, err = os.Readlink(path)
		case info.Mode().IsRegular() && info.Size() <= hashed:
			var text []byte
			text, err = os.ReadFile(path)
			more = fmt.Sprintf("%x", sha256.Sum256(text))
		}
		size := info.Size()
		if entry.IsDir() {
			size = 0
		}
		_, _ = fmt.Fprintln(&out, path, info.Mode(), size, info.ModTime().UnixNano(), more)
		return err
	}
	for _, top := range append(append([]string{}, c.host...), c.places...) {
		if err := filepath.WalkDir(top, look); err != nil {
			t.Fatal(err)
		}
	}
	names, err := os.ReadDir(c.jail)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range names {
		_, _ = fmt.Fprintln(&out, filepath.Join(c.jail, entry.Name()), entry.Type())
	}
	return out.String()
}

// notices is the control: a change that hides its time, and a file more, are seen
// by the manifest, and a secret that does come out is seen by the spy.
func (c *canary) notices(t *testing.T, b box) {
	t.Helper()
	before := c.manifest(t)
	for _, path := range c.places {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		change := func(text string) {
			err := errors.Join(os.WriteFile(path, []byte(text+"\n"), 0o644), os.Chtimes(path, time.Time{}, info.ModTime())) //nolint:gosec // as above
			if err != nil {
				t.Fatal(err)
			}
		}
		change(strings.ToUpper(c.secret))
		if changed := differ(before, c.manifest(t)); !strings.Contains(changed, path) {
			t.Fatalf("a change of %s is not seen: %s", path, changed)
		}
		change(c.secret)
	}
	more := filepath.Join(c.jail, "more")
	if err := os.WriteFile(more, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if changed := differ(before, c.manifest(t)); !strings.Contains(changed, more) {
		t.Fatalf("a file more is not seen: %s", changed)
	}
	if err := os.Remove(more); err != nil {
		t.Fatal(err)
	}
	if left := differ(before, c.manifest(t)); left != "" {
		t.Fatalf("the host changes by itself: %s", left)
	}
	spied := b
	spied.spy = &spy{secret: []byte(c.secret)}
	if _, err := spied.put(t.Context(), "control/"+c.secret, strings.NewReader("padding "+c.secret)); err != nil {
		t.Fatal(err)
	}
	for what, call := range map[string]func() error{
		"a read":     func() error { _, err := spied.read(t.Context(), "control/"+c.secret); return err },
		"a list":     func() error { _, err := spied.list(t.Context(), "control", 1, 100); return err },
		"an archive": func() error { return spied.pack(t.Context(), "control", io.Discard, plain) },
	} {
		spied.spy.seen.Store(false)
		if err := call(); err != nil || !spied.spy.seen.Load() {
			t.Fatalf("%s that has the secret is not noticed: %v", what, err)
		}
	}
	if _, err := b.remove(t.Context(), "control", true); err != nil {
		t.Fatal(err)
	}
}

// spy looks for a secret in what replies hold.
type spy struct {
	secret []byte
	seen   atomic.Bool
}

// look looks in text.
func (s *spy) look(text []byte) {
	if s != nil && bytes.Contains(text, s.secret) {
		s.seen.Store(true)
	}
}

// saw looks in a reply and in an error, which it returns.
func (s *spy) saw(reply any, err error) error {
	text, _ := json.Marshal(reply) // it came as JSON
	s.look(text)
	if err != nil {
		s.look([]byte(err.Error()))
	}
	return err
}

// beside is a writer that the spy reads along.
func (s *spy) beside(w io.Writer) io.Writer {
	if s == nil {
		return w
	}
	return &spied{Writer: w, spy: s}
}

// over is a body that the spy reads along.
func (s *spy) over(body io.ReadCloser) io.ReadCloser {
	if s == nil {
		return body
	}
	return struct {
		io.Reader
		io.Closer
	}{io.TeeReader(body, s.beside(io.Discard)), body}
}

// spied passes on what it looks in.
type spied struct {
	io.Writer
	spy  *spy
	tail []byte // of what was passed on: a secret may come in two pieces
}

func (s *spied) Write(p []byte) (int, error) {
	s.tail = append(s.tail, p...)
	s.spy.look(s.tail)
	s.tail = append(s.tail[:0], s.tail[max(0, len(s.tail)-len(s.spy.secret)):]...)
	return s.Writer.Write(p)
}
