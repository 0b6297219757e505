// Package files proves on booted microVMs what is said of files: every call does
// what it says, a full disk and a second writer leave nothing half done, and no
// path, link, device, archive or hostile agent reaches the host or holds it up.
package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/microvmd/microvm/e2e/harness"
	microvm "github.com/microvmd/microvm/sdk/go"
)

func TestMain(m *testing.M) { harness.Main(m) }

// callBound is within which every call must have an answer, whatever the guest
// does: the daemon gives a guest that says nothing 30 s, the rest is the emulated
// host's.
const callBound = 3 * time.Minute

// box is a sandbox whose files are worked on.
type box struct {
	d   *harness.Daemon
	c   *microvm.Client // that repeats nothing
	id  string
	spy *spy // reads along in all replies, unless it is nil
}

func newBox(t *testing.T, d *harness.Daemon, vcpus int) box {
	t.Helper()
	sb := d.Create(t, microvm.SandboxCreate{Vcpus: &vcpus, IdleSeconds: harness.Ptr(-1), TTLSeconds: harness.Ptr(3600)})
	return box{d: d, c: microvm.New(microvm.WithSocket(d.Socket), microvm.WithMaxRetries(0)), id: sb.ID}
}

// run runs a program of the guest to its end, which must be a good one, and
// returns what it printed.
func (b box) run(t *testing.T, who, cmd string, args ...string) string {
	t.Helper()
	exe, err := b.d.Client.Executions.Run(t.Context(), b.id, microvm.ExecutionCreate{Cmd: cmd, Args: args, User: &who})
	if err != nil || exe.ExitCode == nil || *exe.ExitCode != 0 {
		t.Fatalf("%s %.300q: %v; %+v", cmd, args, err, exe)
	}
	return exe.Stdout
}

// start starts a program of the guest that goes on until stop, and waits for its
// first line, which must be "ready".
func (b box) start(t *testing.T, who, script string, args ...string) (stop func() *microvm.Execution) {
	t.Helper()
	exe, err := b.d.Client.Executions.Create(t.Context(), b.id, microvm.ExecutionCreate{
		Cmd: "python3", Args: append([]string{"-c", script}, args...), User: &who, TimeoutSeconds: harness.Ptr(3600),
	})
	if err != nil {
		t.Fatal(err)
	}
	for !strings.HasPrefix(exe.Stdout, "ready\n") {
		if exe, err = b.d.Client.Executions.Retrieve(t.Context(), b.id, exe.ID); err != nil || exe.Ended() {
			t.Fatalf("a program that is to go on: %+v %v", exe, err)
		}
		time.Sleep(50 * time.Millisecond) // between two looks
	}
	return func() *microvm.Execution {
		t.Helper()
		ended, err := b.d.Client.Executions.Cancel(t.Context(), b.id, exe.ID, microvm.ExecutionCancel{})
		if err == nil && !ended.Ended() {
			ended, err = b.d.Client.Executions.Wait(t.Context(), b.id, exe.ID)
		}
		if err != nil || ended.Status != microvm.ExecutionStatusCanceled {
			t.Fatalf("a program that was to go on: %+v %v", ended, err)
		}
		return ended
	}
}

// at is what a raw request is about.
func at(path string) url.Values { return url.Values{"path": {path}} }

// raw makes a read whose headers matter, or which is not read to its end.
func (b box) raw(ctx context.Context, below string, query url.Values, header ...string) (*http.Response, error) {
	base, headers, client, err := b.c.Connection()
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/v1/sandboxes/"+b.id+"/"+below+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	r.Header = headers.Clone()
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	reply, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	reply.Body = b.spy.over(reply.Body)
	if reply.StatusCode/100 != 2 {
		defer func() { _ = reply.Body.Close() }()
		return reply, microvm.ReadError(reply)
	}
	return reply, nil
}

func (b box) get(ctx context.Context, path string, header ...string) ([]byte, *http.Response, error) {
	reply, err := b.raw(ctx, "files", at(path), header...)
	if err != nil {
		return nil, reply, err
	}
	defer func() { _ = reply.Body.Close() }()
	text, err := io.ReadAll(reply.Body)
	return text, reply, err
}

func (b box) put(ctx context.Context, path string, body io.Reader, opts ...microvm.WriteOption) (*microvm.File, error) {
	file, err := b.c.Files.Upload(ctx, b.id, path, body, opts...)
	return file, b.spy.saw(file, err)
}

func (b box) add(ctx context.Context, path string, size int64, body io.Reader) (*microvm.File, error) {
	file, err := b.c.Files.Append(ctx, b.id, path, size, body)
	return file, b.spy.saw(file, err)
}

func (b box) batch(ctx context.Context, files ...microvm.FileWrite) ([]microvm.File, error) {
	all, err := b.c.Files.WriteBatch(ctx, b.id, files)
	return all, b.spy.saw(all, err)
}

func (b box) read(ctx context.Context, path string) ([]byte, error) {
	text, err := b.c.Files.Read(ctx, b.id, path)
	b.spy.look(text)
	return text, err
}

func (b box) stat(ctx context.Context, path string) (*microvm.File, error) {
	file, err := b.c.Files.Stat(ctx, b.id, path)
	return file, b.spy.saw(file, err)
}

func (b box) list(ctx context.Context, path string, depth, limit int) (*microvm.FileList, error) {
	page, err := b.c.Files.List(ctx, b.id, microvm.ListFilesParams{Path: &path, Depth: &depth, Limit: &limit})
	return page, b.spy.saw(page, err)
}

// all follows the pages of a list.
func (b box) all(ctx context.Context, path string, depth, limit int, after string) (all []microvm.File, err error) {
	params := microvm.ListFilesParams{Path: &path, Depth: &depth, Limit: &limit}
	if after != "" {
		params.After = &after
	}
	for file, err := range b.c.Files.All(ctx, b.id, params) {
		if err != nil {
			return all, b.spy.saw(all, err)
		}
		all = append(all, file)
	}
	return all, b.spy.saw(all, nil)
}

func (b box) mkdir(ctx context.Context, path string, mode fs.FileMode) (*microvm.File, error) {
	file, err := b.c.Files.MakeDir(ctx, b.id, path, microvm.WithMode(mode))
	return file, b.spy.saw(file, err)
}

func (b box) move(ctx context.Context, from, to string, replace bool) (*microvm.File, error) {
	file, err := b.c.Files.Move(ctx, b.id, microvm.FileMove{From: from, To: to, Replace: &replace})
	return file, b.spy.saw(file, err)
}

func (b box) remove(ctx context.Context, path string, recursive bool) (*microvm.FileRemoved, error) {
	gone, err := b.c.Files.Remove(ctx, b.id, path, recursive)
	return gone, b.spy.saw(gone, err)
}

// pack gets an archive of a format, "" for the default.
func (b box) pack(ctx context.Context, path string, into io.Writer, format microvm.ArchiveFormat) error {
	params := microvm.ReadArchiveParams{Path: path}
	if format != "" {
		params.Format = &format
	}
	_, err := b.c.Files.DownloadArchive(ctx, b.id, params, b.spy.beside(into))
	return b.spy.saw(nil, err)
}

// unpack sends an archive.
func (b box) unpack(ctx context.Context, path string, body io.Reader, format microvm.ArchiveFormat, owners microvm.WriteArchiveParamsOwners) (*microvm.ArchiveUnpacked, error) {
	params := microvm.WriteArchiveParams{Path: path, Format: &format, Owners: &owners}
	done, err := b.c.Files.UploadArchive(ctx, b.id, params, body)
	return done, b.spy.saw(done, err)
}

const (
	plain    = microvm.ArchiveFormatTar
	squeezed = microvm.ArchiveFormatTarGz
	user     = microvm.WriteArchiveParamsOwnersUser
	keep     = microvm.WriteArchiveParamsOwnersKeep
)

// holds checks that a file has this content.
func (b box) holds(t *testing.T, path string, want []byte) {
	t.Helper()
	if got, err := b.read(t.Context(), path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s holds %d bytes %.60q, want %d bytes %.60q: %v", path, len(got), got, len(want), want, err)
	}
}

// refused checks the code and the parameter of a refusal.
func refused(t *testing.T, what string, err error, code microvm.ErrorCode, param string) {
	t.Helper()
	var refusal *microvm.Error
	if !errors.As(err, &refusal) || refusal.Code != code || refusal.Param != param {
		t.Errorf("%s: %v, want %s of %q", what, err, code, param)
	}
}

// looker prints a line for each thing below the directory argv[1]: its path, all
// that a file has beside its content, and the content's hash.
const looker = `
import hashlib, os, stat, sys
top = os.fsencode(sys.argv[1])
def show(path):
    s = os.lstat(path)
    kind, more = stat.S_IFMT(s.st_mode), "-"
    if stat.S_ISLNK(s.st_mode):
        more = repr(os.readlink(path))
    elif stat.S_ISREG(s.st_mode):
        more = "%d %d %s" % (s.st_nlink, s.st_size, hashlib.sha256(open(path, "rb").read()).hexdigest())
    print(repr(os.path.relpath(path, top)), oct(s.st_mode), s.st_uid, s.st_gid, more, s.st_mtime_ns)
    if stat.S_ISDIR(s.st_mode):
        for name in sorted(os.listdir(path)):
            show(os.path.join(path, name))
show(top)
`

// look is what root of the guest sees below a directory.
func (b box) look(t *testing.T, dir string) string {
	t.Helper()
	return b.run(t, "root", "python3", "-c", looker, dir)
}

// timeless is what look saw without the times, which come last.
func timeless(seen string) string {
	var out strings.Builder
	for line := range strings.Lines(seen) {
		out.WriteString(line[:strings.LastIndexByte(line, ' ')] + "\n")
	}
	return out.String()
}

// differ shows the lines of a that are not in b, and the other way round.
func differ(a, b string) string {
	var out strings.Builder
	for _, side := range []struct{ sign, text, other string }{{"-", a, b}, {"+", b, a}} {
		other := "\n" + side.other
		for line := range strings.Lines(side.text) {
			if !strings.Contains(other, "\n"+line) {
				fmt.Fprintf(&out, "%s%s", side.sign, line)
			}
		}
	}
	return out.String()
}
