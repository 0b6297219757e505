package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// copyRig is a fake node with one sandbox, and small bounds.
type copyRig struct {
	*fakeNode
	remote *remote
	notes  []string
}

func newCopyRig(t *testing.T) *copyRig {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	for variable, small := range map[*int64]int64{&largeFile: 2000, &largePart: 700, &keepLeast: 100} {
		old := *variable
		*variable = small
		t.Cleanup(func() { *variable = old })
	}
	pause := copyFirstPause
	copyFirstPause = time.Microsecond
	t.Cleanup(func() { copyFirstPause = pause })
	r := &copyRig{fakeNode: newFakeNode()}
	t.Cleanup(r.close)
	// A node that breaks off before it reads is waited for only so long.
	transport := &http.Transport{ExpectContinueTimeout: time.Millisecond}
	t.Cleanup(transport.CloseIdleConnections)
	client := microvm.New(microvm.WithURL(r.server.URL), microvm.WithAPIKey(fakeKey), microvm.WithMaxRetries(0), microvm.WithHTTPClient(&http.Client{Transport: transport}))
	sb, err := client.Sandboxes.Create(t.Context(), microvm.SandboxCreate{Image: "python"})
	if err != nil {
		t.Fatal(err)
	}
	r.remote = &remote{client: client, sandbox: sb.ID}
	return r
}

func (r *copyRig) warn(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// in copies a tree into /workspace/to.
func (r *copyRig) in(ctx context.Context, t *testing.T, from string) (*copyIn, error) {
	t.Helper()
	all, err := scan(t.Context(), from, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &copyIn{remote: r.remote, tree: all, dir: "/workspace/to", meter: &meter{what: "to"}, record: openRecord(r.remote.sandbox), warn: r.warn}
	return c, c.run(ctx)
}

// out copies /workspace/from to a directory here.
func (r *copyRig) out(ctx context.Context, t *testing.T, to string) (*copyOut, error) {
	t.Helper()
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	c := &copyOut{remote: r.remote, from: "/workspace/from", warn: r.warn, into: &extraction{root: root, top: true, meter: &meter{what: "from"}}}
	return c, c.run(ctx)
}

var sampleTime = time.Date(2020, 1, 2, 3, 4, 5, 678_000_000, time.UTC)

// samples are paths and contents; "" with a slash at the end is a directory, and
// what begins with -> a link.
func samples() map[string]string {
	return map[string]string{
		"-first": "1", "a/": "", "a/b/": "", "a/b/c": strings.Repeat("c", 900), "a/b.txt": strings.Repeat("t", 1200), "a-b": "x",
		"empty": "", "large": strings.Repeat("0123456789", 350), "link": "->a/b/c", "z/": "", "z/more": strings.Repeat("z", 1999), "z/\x01 odd": "o",
	}
}

func makeSamples(t *testing.T, dir string) {
	t.Helper()
	for name, content := range samples() {
		full := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(full), 0o755)
		switch target, link := strings.CutPrefix(content, "->"); {
		case strings.HasSuffix(name, "/"):
			err = errors.Join(err, os.MkdirAll(full, 0o755))
		case link:
			err = errors.Join(err, os.Symlink(target, full))
		default:
			err = errors.Join(err, os.WriteFile(full, []byte(content), 0o640), os.Chtimes(full, time.Time{}, sampleTime))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (r *copyRig) putSamples() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, content := range samples() {
		file := &fakeFile{kind: microvm.FileTypeFile, content: []byte(content), mode: "0640", modified: sampleTime}
		switch target, link := strings.CutPrefix(content, "->"); {
		case strings.HasSuffix(name, "/"):
			file.kind, file.mode = microvm.FileTypeDirectory, "0755"
		case link:
			file.kind, file.target, file.content = microvm.FileTypeSymlink, target, nil
		}
		r.put(r.remote.sandbox, path.Join("/workspace/from", name), file)
	}
}

// checkArrived compares what is in the sandbox; each file came whole once.
func (r *copyRig) checkArrived(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, content := range samples() {
		file := r.at(r.remote.sandbox, path.Join("/workspace/to", name))
		target, link := strings.CutPrefix(content, "->")
		switch {
		case file == nil:
			t.Errorf("%q did not arrive", name)
		case strings.HasSuffix(name, "/"):
		case link && file.target != target, !link && string(file.content) != content:
			t.Errorf("%q arrived as %.20q", name, file.content)
		case !link && file.mode != "0640", name != "large" && file.arrived != 1:
			t.Errorf("%q has mode %s and arrived %d times", name, file.mode, file.arrived)
		}
	}
	if names := r.beneath(r.remote.sandbox, "/workspace/to", ""); len(names) != len(samples()) {
		t.Errorf("there are %q", names)
	}
}

// checkHere is the same of a copy out.
func checkHere(t *testing.T, dir string) {
	t.Helper()
	count := 0
	err := filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if name != dir {
			count++
		}
		return err
	})
	if err != nil || count != len(samples()) {
		t.Errorf("%d files and directories are here: %v", count, err)
	}
	for name, content := range samples() {
		full := filepath.Join(dir, name)
		target, link := strings.CutPrefix(content, "->")
		info, err := os.Lstat(full)
		if err != nil {
			t.Error(err)
			continue
		}
		if link {
			if got, _ := os.Readlink(full); got != target {
				t.Errorf("%q says %q", name, got)
			}
			continue
		}
		if !info.ModTime().Equal(sampleTime) {
			t.Errorf("%q has the time %s", name, info.ModTime())
		}
		if info.IsDir() {
			continue
		}
		if got, err := os.ReadFile(full); string(got) != content || err != nil || info.Mode() != 0o640 {
			t.Errorf("%q is %.20q, %s, %v", name, got, info.Mode(), err)
		}
	}
}

// TestCopiesGoOnAfterACut cuts the connection at each of many bytes, once and
// several times, on both ways.
func TestCopiesGoOnAfterACut(t *testing.T) {
	for at := 0; at < 30_000; at += 977 {
		for _, what := range []string{"PUT archive", "PUT file", "GET archive", "GET file"} {
			cuts := []int{at, at / 2, 0}
			if strings.HasSuffix(what, "file") && at > 4000 {
				continue
			}
			t.Run(fmt.Sprintf("%s at %d", what, at), func(t *testing.T) {
				r := newCopyRig(t)
				r.cut(what, cuts...)
				if strings.HasPrefix(what, "PUT") {
					from := t.TempDir()
					makeSamples(t, from)
					if _, err := r.in(t.Context(), t, from); err != nil {
						t.Fatal(err)
					}
					r.checkArrived(t)
					return
				}
				r.putSamples()
				to := t.TempDir()
				c, err := r.out(t.Context(), t, to)
				if err != nil {
					t.Fatal(err)
				}
				checkHere(t, to)
				if files, _ := c.into.meter.moved(); files != 9 {
					t.Errorf("%d files were taken", files)
				}
			})
		}
	}
}

// TestACopyThatGetsNowhereEnds, and the next one goes on where it was.
func TestACopyThatGetsNowhereEnds(t *testing.T) {
	nowhere := make([]int, 100)
	t.Run("in", func(t *testing.T) {
		r := newCopyRig(t)
		from := t.TempDir()
		makeSamples(t, from)
		r.cut("PUT archive", append([]int{5000}, nowhere...)...)
		var lost *microvm.ConnectionError
		if _, err := r.in(t.Context(), t, from); !errors.As(err, &lost) || r.requests("PUT archive") > copyTries+2 {
			t.Fatalf("%v after %d requests", err, r.requests("PUT archive"))
		}
		if len(r.notes) == 0 || !strings.Contains(r.notes[0], "looking what arrived") {
			t.Fatalf("said %q", r.notes)
		}
		r.cut("PUT archive")
		c, err := r.in(t.Context(), t, from)
		if err != nil || c.first.same == 0 {
			t.Fatalf("%v, %d were there", err, c.first.same)
		}
		r.checkArrived(t)
	})
	t.Run("in, inside a large file", func(t *testing.T) {
		r := newCopyRig(t)
		from := t.TempDir()
		makeSamples(t, from)
		r.cut("PUT file", append([]int{-1, -1, 10}, nowhere...)...)
		if _, err := r.in(t.Context(), t, from); err == nil {
			t.Fatal("it went on without a connection")
		}
		before := r.requests("PUT file")
		r.cut("PUT file")
		if _, err := r.in(t.Context(), t, from); err != nil || r.requests("PUT file")-before != 3 { // of 5 parts
			t.Fatalf("%v, %d parts were sent", err, r.requests("PUT file")-before)
		}
		r.checkArrived(t)
		if c, err := r.in(t.Context(), t, from); err != nil || c.first.files != 0 {
			t.Fatalf("%v, %d files were sent once more", err, c.first.files)
		}
	})
	t.Run("out", func(t *testing.T) {
		r := newCopyRig(t)
		r.putSamples()
		to := t.TempDir()
		r.cut("GET archive", append([]int{6000}, nowhere...)...)
		if _, err := r.out(t.Context(), t, to); err == nil {
			t.Fatal("it went on without a connection")
		}
		r.cut("GET archive")
		c, err := r.out(t.Context(), t, to)
		if err != nil || c.same == 0 {
			t.Fatalf("%v, %d were here", err, c.same)
		}
		checkHere(t, to)
	})
	t.Run("out, inside a large file", func(t *testing.T) {
		r := newCopyRig(t)
		r.putSamples()
		to := t.TempDir()
		r.cut("GET file", append([]int{1500}, nowhere...)...)
		c, err := r.out(t.Context(), t, to)
		if err == nil || c.kept < 1000 {
			t.Fatalf("%v, %d bytes are kept", err, c.kept)
		}
		r.cut("GET file")
		r.notes = nil
		if _, err := r.out(t.Context(), t, to); err != nil || !strings.Contains(strings.Join(r.notes, "\n"), "where an earlier copy ended") {
			t.Fatalf("%v, said %q", err, r.notes)
		}
		checkHere(t, to)
	})
}

// TestAChangedFileBeginsAnew: what came of another content is not kept.
func TestAChangedFileBeginsAnew(t *testing.T) {
	r := newCopyRig(t)
	r.putSamples()
	to := t.TempDir()
	r.cut("GET file", append([]int{1500}, make([]int, 100)...)...)
	if _, err := r.out(t.Context(), t, to); err == nil {
		t.Fatal("it went on without a connection")
	}
	r.cut("GET file")
	other := strings.Repeat("ABCDE", 700)
	r.lay(r.remote.sandbox, "/workspace/from/large", &fakeFile{kind: microvm.FileTypeFile, content: []byte(other), mode: "0640", modified: sampleTime.Add(time.Second)})
	if _, err := r.out(t.Context(), t, to); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(filepath.Join(to, "large")); string(got) != other || !strings.Contains(strings.Join(r.notes, "\n"), "has changed since") {
		t.Fatalf("it is %.20q; said %q", got, r.notes)
	}
	if left, _ := filepath.Glob(filepath.Join(to, ".microvm-*")); len(left) > 0 {
		t.Fatalf("left %q", left)
	}
}

// TestASmallFileThatBreaksLeavesNothing: what stood there stays.
func TestASmallFileThatBreaksLeavesNothing(t *testing.T) {
	r := newCopyRig(t)
	r.lay(r.remote.sandbox, "/workspace/cut", &fakeFile{kind: microvm.FileTypeFile, content: []byte("CUT\n"), mode: "0644"})
	dir := t.TempDir()
	old := filepath.Join(dir, "old")
	if err := os.WriteFile(old, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	c := &copying{client: r.remote.client, stderr: &stderr, progress: newProgress(&stderr, false)}
	for _, to := range []string{old, filepath.Join(dir, "new")} {
		err := c.outOf(t.Context(), r.remote.sandbox, "cut", to)
		var lost *microvm.ConnectionError
		if !errors.As(err, &lost) || !strings.Contains(err.Error(), "4 of 104 bytes came") || !strings.Contains(stderr.String(), "going on at 0 B") {
			t.Errorf("%s: error %v, said %q", to, err, stderr.String())
		}
	}
	names, _ := os.ReadDir(dir)
	if content, _ := os.ReadFile(old); string(content) != "old" || len(names) != 1 {
		t.Errorf("old is %q, there are %v", content, names)
	}
}
