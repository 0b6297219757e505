package files

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/microvmd/microvm/e2e/harness"
	microvm "github.com/microvmd/microvm/sdk/go"
)

// noise is content that is nowhere else and cannot be squeezed.
func noise(size int) []byte {
	out := make([]byte, size)
	_, _ = rand.NewChaCha8(sha256.Sum256(fmt.Append(nil, size))).Read(out)
	return out
}

// TestEveryCall walks through all of them in one guest, which says each time what
// it sees.
func TestEveryCall(t *testing.T) {
	d := harness.Start(t, "files", "--scratch-mib", "128")
	b := newBox(t, d, 1)
	t.Run("write and read", b.writesAndReads)
	t.Run("ranges", b.givesRanges)
	t.Run("append", b.appends)
	t.Run("batch", b.writesBatches)
	t.Run("directories, move, remove", b.movesAndRemoves)
	t.Run("stat and list", b.lists)
	t.Run("archives", b.archives)
	t.Run("archives of others", b.archivesOfOthers)
	t.Run("watch", b.watches)
	t.Run("two writers", b.twoWriters)
}

func (b box) writesAndReads(t *testing.T) {
	big := noise(3 << 20)
	for path, c := range map[string]struct {
		mode fs.FileMode
		text []byte
		want string // absolute
	}{
		"new/parents/main.py": {0o640, []byte("print('hello')\n"), "/workspace/new/parents/main.py"},
		"./new/../empty":      {0, nil, "/workspace/empty"},
		"/srv/app/run":        {0o755, []byte("#!/bin/sh\necho ran\n"), "/srv/app/run"},
		"big":                 {0o600, big, "/workspace/big"},
		"a name \xff\n%2f":    {0o644, []byte("x"), "/workspace/a name \ufffd\n%2f"},
	} {
		var opts []microvm.WriteOption
		if c.mode != 0 {
			opts = append(opts, microvm.WithMode(c.mode))
		}
		file, err := b.put(t.Context(), path, bytes.NewReader(c.text), opts...)
		if err != nil || file.Path != c.want || file.Size != int64(len(c.text)) || file.UID != 1000 || file.GID != 1000 || file.Type != microvm.FileTypeFile || file.Mode != fmt.Sprintf("%04o", cmp.Or(c.mode, 0o644)) {
			t.Errorf("write %q: %+v %v", path, file, err)
		}
		b.holds(t, path, c.text)
	}
	small, err := b.post(t.Context(), `{"path": "new/small", "content": "c21hbGwK", "mode": "0400"}`)
	if err != nil || small.Size != 6 || small.Mode != "0400" {
		t.Errorf("write a small file: %+v %v", small, err)
	}
	b.holds(t, "new/small", []byte("small\n"))
	// A length that is not known before, and a file that is replaced.
	pipe, into := io.Pipe()
	go func() {
		_, err := into.Write([]byte("streamed"))
		_ = into.CloseWithError(err)
	}()
	if _, err := b.put(t.Context(), "new/small", pipe); err != nil {
		t.Errorf("stream over a file: %v", err)
	}
	b.holds(t, "new/small", []byte("streamed"))

	want := fmt.Sprintf(`640 1000 1000 /workspace/new/parents/main.py
644 1000 1000 /workspace/empty
755 0 0 /srv
755 1000 1000 /srv/app
755 1000 1000 /srv/app/run
755 1000 1000 /workspace/new/parents
600 1000 1000 /workspace/big
644 1000 1000 /workspace/new/small
ran
%x  /workspace/big
`, sha256.Sum256(big))
	got := b.run(t, "root", "sh", "-c", `cd /workspace
stat -c '%a %u %g %n' /workspace/new/parents/main.py /workspace/empty /srv /srv/app /srv/app/run /workspace/new/parents /workspace/big /workspace/new/small
/srv/app/run; sha256sum /workspace/big`)
	if got != want {
		t.Errorf("inside:\n%s", differ(want, got))
	}
	for path, code := range map[string]microvm.ErrorCode{
		"none": microvm.ErrorCodeFileNotFound, "/workspace": microvm.ErrorCodeParameterInvalid, "big/below": microvm.ErrorCodeFileNotFound, strings.Repeat("a", 300): microvm.ErrorCodeParameterInvalid,
	} {
		var refusal *microvm.Error
		if _, err := b.read(t.Context(), path); !errors.As(err, &refusal) || refusal.Code != code {
			t.Errorf("read %.20q: %v", path, err)
		}
	}
	for path, param := range map[string]string{"/workspace": "path", "new/": "path", "big/below": "path", strings.Repeat("b", 5000): "path"} {
		_, err := b.put(t.Context(), path, strings.NewReader("x"))
		refused(t, fmt.Sprintf("write %.20q", path), err, microvm.ErrorCodeParameterInvalid, param)
	}
	_, err = b.post(t.Context(), `{"path": "x", "content": "", "mode": "4755"}`)
	refused(t, "write with setuid", err, microvm.ErrorCodeParameterInvalid, "mode")
}

// post writes a small file as JSON has it, which the SDK has no call for.
func (b box) post(ctx context.Context, body string) (*microvm.File, error) {
	base, header, client, err := b.c.Connection()
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/sandboxes/"+b.id+"/files", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header = header.Clone()
	r.Header.Set("Content-Type", "application/json")
	reply, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = reply.Body.Close() }()
	if reply.StatusCode != http.StatusCreated {
		return nil, microvm.ReadError(reply)
	}
	file := new(microvm.File)
	return file, json.NewDecoder(reply.Body).Decode(file)
}

func (b box) givesRanges(t *testing.T) {
	text := noise(300_000)
	if _, err := b.put(t.Context(), "parts", bytes.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	_, whole, err := b.get(t.Context(), "parts")
	if err != nil || whole.StatusCode != http.StatusOK || whole.Header.Get("Accept-Ranges") != "bytes" {
		t.Fatalf("%+v %v", whole, err)
	}
	tag := whole.Header.Get("ETag")
	for asked, c := range map[string]struct {
		from, to int
		header   []string
	}{
		"bytes=0-99":                  {0, 100, nil},
		"bytes=299990-":               {299_990, 300_000, nil},
		"bytes=-10":                   {299_990, 300_000, nil},
		"bytes=-999999":               {0, 300_000, nil},
		"bytes=100000-99999999":       {100_000, 300_000, nil},
		"bytes=150000-150000":         {150_000, 150_001, []string{"If-Range", tag}},
		"bytes=5-9223372036854775807": {5, 300_000, nil},
	} {
		got, reply, err := b.get(t.Context(), "parts", append([]string{"Range", asked}, c.header...)...)
		if err != nil || reply.StatusCode != http.StatusPartialContent || !bytes.Equal(got, text[c.from:c.to]) ||
			reply.Header.Get("Content-Range") != fmt.Sprintf("bytes %d-%d/300000", c.from, c.to-1) || reply.Header.Get("ETag") != tag {
			t.Errorf("%s: %d bytes, %+v %v", asked, len(got), reply, err)
		}
	}
	_, reply, refusal := b.get(t.Context(), "parts", "Range", "bytes=300000-")
	refused(t, "a range behind the end", refusal, microvm.ErrorCodeRangeInvalid, "Range")
	if reply.StatusCode != http.StatusRequestedRangeNotSatisfiable || reply.Header.Get("Content-Range") != "bytes */300000" {
		t.Errorf("a range behind the end: %+v", reply)
	}
	// The SDK gets a file part by part.
	var parts bytes.Buffer
	part := &microvm.FilePart{ETag: tag}
	for parts.Len() < len(text) && err == nil {
		part, err = b.c.Files.DownloadRange(t.Context(), b.id, "parts", microvm.FileRange{Offset: int64(parts.Len()), Length: 70_000, ETag: part.ETag}, &parts)
	}
	if err != nil || !bytes.Equal(parts.Bytes(), text) || part.Offset != 280_000 || part.Size != 300_000 {
		t.Errorf("part by part: %d bytes, %+v %v", parts.Len(), part, err)
	}
	// One that is another by now comes as a whole, also when only the guest changed it.
	b.run(t, "user", "sh", "-c", "printf x | dd of=parts conv=notrunc bs=1 status=none")
	text[0] = 'x'
	if _, err := b.c.Files.DownloadRange(t.Context(), b.id, "parts", microvm.FileRange{Offset: 5, ETag: tag}, io.Discard); !errors.Is(err, microvm.ErrFileChanged) {
		t.Errorf("a part of a changed file: %v", err)
	}
	got, reply, err := b.get(t.Context(), "parts", "Range", "bytes=10-20", "If-Range", tag)
	if err != nil || reply.StatusCode != http.StatusOK || !bytes.Equal(got, text) || reply.Header.Get("ETag") == tag {
		t.Errorf("a changed file: %d bytes, %+v %v", len(got), reply, err)
	}
}

func (b box) appends(t *testing.T) {
	for i, size := range []int64{0, 4, 8} {
		if file, err := b.add(t.Context(), "log/lines", size, strings.NewReader(fmt.Sprintf("no %d", i))); err != nil || file.Size != size+4 {
			t.Errorf("append %d: %+v %v", i, file, err)
		}
	}
	for what, size := range map[string]int64{"that is behind": 8, "that is ahead": 13, "to a file that is there": 0} {
		_, err := b.add(t.Context(), "log/lines", size, strings.NewReader("lost"))
		refused(t, "an append "+what, err, microvm.ErrorCodeFileConflict, "append_at")
	}
	_, err := b.add(t.Context(), "log/none", 1, strings.NewReader("lost"))
	refused(t, "an append to nothing", err, microvm.ErrorCodeFileNotFound, "")
	b.holds(t, "log/lines", []byte("no 0no 1no 2"))

	// One that breaks off adds nothing.
	broken := errors.New("the caller's disk broke")
	pipe, into := io.Pipe()
	go func() {
		_, _ = into.Write(noise(500_000))
		_ = into.CloseWithError(broken)
	}()
	if _, err := b.add(t.Context(), "log/lines", 12, pipe); err == nil {
		t.Error("a body that broke off was taken")
	}
	b.settles(t, "log", []string{"lines"})
	b.holds(t, "log/lines", []byte("no 0no 1no 2"))
}

// settles waits until a directory holds these names and no others: what the
// daemon gave up the guest learns of a moment later.
func (b box) settles(t *testing.T, dir string, want []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callBound)
	defer cancel()
	for {
		names := []string{}
		page, err := b.list(ctx, dir, 1, 1000)
		if err != nil {
			t.Fatalf("list %s, which is to hold %q: %v", dir, want, err)
		}
		for _, file := range page.Data {
			names = append(names, file.Path[strings.LastIndexByte(file.Path, '/')+1:])
		}
		if slices.Equal(names, want) {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond): // between two looks
		case <-ctx.Done():
			t.Fatalf("%s holds %q, want %q", dir, names, want)
		}
	}
}

func (b box) writesBatches(t *testing.T) {
	file := func(path, text string) microvm.FileWrite { return microvm.FileWrite{Path: path, Content: []byte(text)} }
	if _, err := b.batch(t.Context(), file("lot/a", "old")); err != nil {
		t.Fatal(err)
	}
	script := file("lot/sub/b", "#!/bin/sh\necho b\n")
	script.Mode = harness.Ptr("0750")
	done, err := b.batch(t.Context(), file("lot/a", "new"), script, file("/workspace/lot/empty", ""))
	if err != nil || len(done) != 3 || done[1].Path != "/workspace/lot/sub/b" || done[1].Mode != "0750" || done[2].Size != 0 {
		t.Fatalf("%+v %v", done, err)
	}
	want := b.look(t, "/workspace/lot")
	many := make([]microvm.FileWrite, 101)
	for i := range many {
		many[i] = file(fmt.Sprintf("lot/many/%d", i), "x")
	}
	for what, c := range map[string]struct {
		files []microvm.FileWrite
		param string
	}{
		"the same place twice":             {[]microvm.FileWrite{file("lot/n/1", "x"), file("lot/a", "x"), file("/workspace/lot/./n/1", "y")}, "files[2].path"},
		"one below another":                {[]microvm.FileWrite{file("lot/n/1/2", "x"), file("lot/n/1", "x")}, "files[0].path"},
		"no path":                          {[]microvm.FileWrite{file("lot/n/1", "x"), file("", "x")}, "files[1].path"},
		"a directory":                      {[]microvm.FileWrite{file("lot/n/1", "x"), file("lot/n/2/", "x")}, "files[1].path"},
		"101 files":                        {many, "files"},
		"none":                             {[]microvm.FileWrite{}, "files"},
		"one on a directory":               {[]microvm.FileWrite{file("lot/n/1", "x"), file("lot/a", "x"), file("lot/sub", "x")}, "files[2].path"},
		"one below a file":                 {[]microvm.FileWrite{file("lot/a", "x"), file("lot/n/1", "x"), file("lot/empty/1", "x")}, "files[2].path"},
		"one that the guest refuses":       {[]microvm.FileWrite{file("lot/a", "x"), file("/proc/none/1", "x")}, "files[1].path"},
		"one with a name that is too long": {[]microvm.FileWrite{file("lot/a", "x"), file("lot/n/"+strings.Repeat("a", 300), "x")}, "files[1].path"},
	} {
		_, err := b.batch(t.Context(), c.files...)
		refused(t, "a batch with "+what, err, microvm.ErrorCodeParameterInvalid, c.param)
	}
	if got := timeless(b.look(t, "/workspace/lot")); got != timeless(want) {
		t.Errorf("refused batches left something:\n%s", differ(timeless(want), got))
	}
	if _, err := b.batch(t.Context(), many[:100]...); err != nil {
		t.Error(err)
	}
	if list, err := b.all(t.Context(), "lot/many", 1, 30, ""); err != nil || len(list) != 100 {
		t.Errorf("%d files: %v", len(list), err)
	}
}

func (b box) movesAndRemoves(t *testing.T) {
	ctx := t.Context()
	made, err := b.mkdir(ctx, "dirs/one", 0o700)
	if err != nil || made.Type != microvm.FileTypeDirectory || made.Mode != "0700" || made.UID != 1000 || made.Path != "/workspace/dirs/one" {
		t.Errorf("%+v %v", made, err)
	}
	if again, err := b.mkdir(ctx, "dirs/one", 0o755); err != nil || again.Mode != "0700" {
		t.Errorf("one that is there: %+v %v", again, err)
	}
	for path, text := range map[string]string{"dirs/one/f": "f", "dirs/two/g": "g", "dirs/h": "h", "dirs/i": "i"} {
		if _, err := b.put(ctx, path, strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	_, err = b.mkdir(ctx, "dirs/h", 0o755)
	refused(t, "a directory on a file", err, microvm.ErrorCodeResourceAlreadyExists, "path")
	_, err = b.mkdir(ctx, "dirs/h/below", 0o755)
	refused(t, "a directory below a file", err, microvm.ErrorCodeResourceAlreadyExists, "path")

	for _, c := range []struct {
		what, from, to string
		replace        bool
		code           microvm.ErrorCode
		param          string
	}{
		{"onto a file", "dirs/h", "dirs/i", false, microvm.ErrorCodeResourceAlreadyExists, "to"},
		{"of nothing", "dirs/none", "dirs/x", false, microvm.ErrorCodeFileNotFound, "from"},
		{"to where no directory is", "dirs/h", "dirs/none/x", false, microvm.ErrorCodeFileNotFound, "from"},
		{"onto a directory that has entries", "dirs/one", "dirs/two", true, microvm.ErrorCodeFileConflict, "to"},
		{"to another file system", "dirs/h", "/dev/shm/h", false, microvm.ErrorCodeFileConflict, "to"},
		{"into itself", "dirs/one", "dirs/one/x", false, microvm.ErrorCodeParameterInvalid, "to"},
		{"of a file onto a directory", "dirs/h", "dirs/two", true, microvm.ErrorCodeResourceAlreadyExists, "to"},
		{"of the working directory", "/workspace", "/elsewhere", false, microvm.ErrorCodeParameterInvalid, "to"},
	} {
		_, err := b.move(ctx, c.from, c.to, c.replace)
		refused(t, "a move "+c.what, err, c.code, c.param)
	}
	for _, c := range []struct {
		from, to string
		replace  bool
	}{{"dirs/h", "dirs/i", true}, {"dirs/one", "/workspace/dirs/three", false}, {"dirs/two/g", "dirs/three/f", true}} {
		if moved, err := b.move(ctx, c.from, c.to, c.replace); err != nil || !strings.HasSuffix(moved.Path, c.to) {
			t.Errorf("move %q: %+v %v", c.from, moved, err)
		}
	}
	b.holds(t, "dirs/i", []byte("h"))
	b.holds(t, "dirs/three/f", []byte("g"))

	b.run(t, "user", "sh", "-c", "cd dirs; ln -s three link; mkfifo three/pipe; mkdir -p deep/a/b/c; touch deep/a/x deep/a/b/y")
	_, err = b.remove(ctx, "dirs/three", false)
	refused(t, "removing what has entries", err, microvm.ErrorCodeFileConflict, "path")
	for _, path := range []string{"/", "/workspace", ".", "..", "/workspace/dirs/.."} {
		_, err := b.remove(ctx, path, true)
		refused(t, "removing "+path, err, microvm.ErrorCodeParameterInvalid, "path")
	}
	for _, c := range []struct {
		path      string
		recursive bool
		want      int64
	}{{"dirs/link", true, 1}, {"dirs/two", false, 1}, {"dirs/deep", true, 6}, {"dirs/three/pipe", false, 1}, {"dirs/i", false, 1}} {
		if gone, err := b.remove(ctx, c.path, c.recursive); err != nil || gone.Entries != c.want {
			t.Errorf("remove %s: %+v %v", c.path, gone, err)
		}
	}
	_, err = b.remove(ctx, "dirs/i", false)
	refused(t, "removing nothing", err, microvm.ErrorCodeFileNotFound, "")
	b.settles(t, "dirs", []string{"three"})
}

func (b box) lists(t *testing.T) {
	b.run(t, "root", "python3", "-c", `
import os, socket
os.makedirs("/workspace/list/b/c/d")
os.chdir(b"/workspace/list")
for name in (b"a", b"a.txt", b"a-b", b"b/c/d/deep", b"b/z", "ü".encode(), b"no utf-8 \xff", b"new\nline"):
    open(name, "w").write("12345")
os.mkfifo("fifo")
os.symlink("/etc", "link")
os.symlink(b"to \xfe", "odd")
socket.socket(socket.AF_UNIX).bind("socket")
os.mknod("device", 0o600 | 0o020000, os.makedev(1, 3))
os.chown("a", 7, 8)
os.chmod("a", 0o4711)
os.utime("a", ns=(0, -1500000000))
`)
	names := func(all []microvm.File) (names []string) {
		for _, file := range all {
			names = append(names, strings.TrimPrefix(file.Path, "/workspace/list/"))
		}
		return names
	}
	flat := []string{"a", "a-b", "a.txt", "b", "device", "fifo", "link", "new\nline", "no utf-8 \ufffd", "odd", "socket", "ü"}
	if all, err := b.all(t.Context(), "list", 1, 100, ""); err != nil || !slices.Equal(names(all), flat) {
		t.Errorf("%q %v", names(all), err)
	}
	for _, limit := range []int{1, 2, 5, 1000} {
		all, err := b.all(t.Context(), "/workspace/list", 3, limit, "")
		want := slices.Insert(slices.Clone(flat), 4, "b/c", "b/c/d", "b/z")
		if err != nil || !slices.Equal(names(all), want) {
			t.Errorf("pages of %d: %q %v", limit, names(all), err)
		}
	}
	if all, err := b.all(t.Context(), "list", 32, 100, "b/c/d"); err != nil || names(all)[0] != "b/c/d/deep" {
		t.Errorf("%q %v", names(all), err)
	}
	for path, want := range map[string]string{
		"list/a": "file 5 4711 7 8 1969-12-31T23:59:58.5Z -", "list/link": "symlink 4 0777 0 0 - /etc", "list/fifo": "fifo 0 0644 0 0 - -",
		"list/socket": "socket 0 0755 0 0 - -", "list/device": "device 0 0600 0 0 - -", "/etc": "directory 4096 0755 0 0 - -", "list/odd": "symlink 4 0777 0 0 - to \ufffd",
	} {
		file, err := b.stat(t.Context(), path)
		if err != nil {
			t.Errorf("stat %s: %v", path, err)
			continue
		}
		modified, target := "-", "-"
		if strings.HasPrefix(want, "file") {
			modified = file.Modified.Format(time.RFC3339Nano)
		}
		if file.Target != nil {
			target = *file.Target
		}
		if got := fmt.Sprintf("%s %d %s %d %d %s %s", file.Type, file.Size, file.Mode, file.UID, file.GID, modified, target); got != want {
			t.Errorf("stat %s: %s, want %s", path, got, want)
		}
	}
	_, err := b.list(t.Context(), "list/a", 1, 1)
	refused(t, "a list of a file", err, microvm.ErrorCodeParameterInvalid, "path")
	_, err = b.list(t.Context(), "list/none", 1, 1)
	refused(t, "a list of nothing", err, microvm.ErrorCodeFileNotFound, "")
	_, err = b.stat(t.Context(), "list/none")
	refused(t, "a stat of nothing", err, microvm.ErrorCodeFileNotFound, "")
}

// tree makes a directory with all that an archive keeps.
const tree = `
import os, sys
top = os.fsencode(sys.argv[1])
os.makedirs(top + b"/sub/deeper")
os.chdir(top)
def put(name, data, mode, uid=1000, gid=1000):
    open(name, "wb").write(data)
    os.chown(name, uid, gid)
    os.chmod(name, mode)
put("plain", b"plain\n", 0o644)
put("private", b"secret", 0o600, 0, 0)
put("setuid", b"#!/bin/sh\n", 0o4755, 0, 4242)
put("empty", b"", 0o400, 123456, 654321)
put(b"no utf-8 \xff", b"x", 0o644)
put("n" * 200, b"long", 0o644)
put("sub/deeper/big", os.urandom(1500000), 0o666)
put("sub/zeros", bytes(200000), 0o644)
os.link("plain", "sub/hard")
os.symlink("plain", "to plain")
os.symlink("../nothing/there", "dangling")
os.symlink("/etc", "sub/absolute")
os.lchown("dangling", 77, 88)
os.mkdir("locked")
os.chmod("locked", 0o1777)
os.mkdir("sub/read only")
os.chmod("sub/read only", 0o500)
for i, (path, dirs, names) in enumerate(os.walk(b".", topdown=False)):
    for j, name in enumerate(dirs + names):
        at = os.path.join(path, name)
        os.utime(at, ns=(1, 1234567890123456789 + i * 1000000007 + j), follow_symlinks=False)
os.utime(top, ns=(1, 1000000001000000001))
`

func (b box) archives(t *testing.T) {
	b.run(t, "root", "python3", "-c", tree, "/workspace/tree")
	want := b.look(t, "/workspace/tree")
	for _, format := range []microvm.ArchiveFormat{plain, squeezed} {
		var archive bytes.Buffer
		if err := b.pack(t.Context(), "tree", &archive, format); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d bytes", format, archive.Len())
		// GNU tar in the guest, this program, and the API make the same of it.
		copied := "copy of " + string(format)
		done, err := b.unpack(t.Context(), copied, bytes.NewReader(archive.Bytes()), format, keep)
		if err != nil || done.Entries != 17 || done.Bytes < 1_700_000 {
			t.Fatalf("%+v %v", done, err)
		}
		if got := b.look(t, "/workspace/"+copied); got != want {
			t.Errorf("%s:\n%s", format, differ(want, got))
		}
		if _, err := b.put(t.Context(), "archive", bytes.NewReader(archive.Bytes())); err != nil {
			t.Fatal(err)
		}
		b.run(t, "root", "sh", "-ec", "mkdir -p gnu; tar -xpf archive -C gnu --numeric-owner")
		if got := b.look(t, "/workspace/gnu"); got != want {
			t.Errorf("GNU tar of %s:\n%s", format, differ(want, got))
		}
		// Without keep all is the user's, and nothing is setuid.
		if _, err := b.unpack(t.Context(), "mine", bytes.NewReader(archive.Bytes()), format, user); err != nil {
			t.Fatal(err)
		}
		if got := b.run(t, "root", "find", "/workspace/mine", "-not", "-uid", "1000", "-o", "-perm", "/6000"); got != "" {
			t.Errorf("not the user's: %s", got)
		}
		b.run(t, "root", "rm", "-rf", "/workspace/gnu", "/workspace/mine", "/workspace/"+copied)
	}
	// One file alone, a part of a directory, and what no archive holds.
	var one bytes.Buffer
	if err := b.pack(t.Context(), "tree/to plain", &one, ""); err != nil {
		t.Fatal(err)
	}
	if got := members(t, &one); !slices.Equal(got, []string{"plain - plain\n"}) && !slices.Equal(got, []string{"to plain - plain\n"}) {
		t.Errorf("a link to a file: %q", got)
	}
	var rest bytes.Buffer
	after := "sub/zeros"
	if _, err := b.c.Files.DownloadArchive(t.Context(), b.id, microvm.ReadArchiveParams{Path: "tree", After: &after}, &rest); err != nil {
		t.Fatal(err)
	}
	if got := members(t, &rest); len(got) != 1 || !strings.HasPrefix(got[0], "to plain") {
		t.Errorf("behind the last but one: %q", got)
	}
	for path, code := range map[string]microvm.ErrorCode{"tree/none": microvm.ErrorCodeFileNotFound, "list/socket": microvm.ErrorCodeParameterInvalid} {
		var refusal *microvm.Error
		if err := b.pack(t.Context(), path, io.Discard, plain); !errors.As(err, &refusal) || refusal.Code != code {
			t.Errorf("pack %s: %v", path, err)
		}
	}
	// FIFOs and devices are told of, without content, and sockets are not.
	var special bytes.Buffer
	if err := b.pack(t.Context(), "list", &special, plain); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(members(t, &special), "\n")
	if !strings.Contains(got, "\nfifo - \n") || !strings.Contains(got, "\ndevice - \n") || strings.Contains(got, "\nsocket") {
		t.Errorf("special files: %q", got)
	}
}

// members are the names, targets and short contents of an archive.
func members(t *testing.T, archive io.Reader) (all []string) {
	t.Helper()
	for r := tar.NewReader(archive); ; {
		head, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(io.LimitReader(r, 100))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%s - %s%s", head.Name, head.Linkname, text))
	}
}

// archivesOfOthers unpacks what this program and GNU tar make.
func (b box) archivesOfOthers(t *testing.T) {
	var bare, zipped bytes.Buffer
	zip := gzip.NewWriter(&zipped)
	out := tar.NewWriter(io.MultiWriter(&bare, zip))
	for _, m := range []tar.Header{
		{Name: "deep/er/f", Mode: 0o640, Typeflag: tar.TypeReg, Size: 3, Uid: 5, Gid: 6},
		{Name: "deep/", Mode: 0o711, Typeflag: tar.TypeDir, Uid: 5},
		{Name: "l", Linkname: "/etc/passwd", Typeflag: tar.TypeSymlink},
		{Name: "h", Linkname: "deep/er/f", Typeflag: tar.TypeLink},
	} {
		m.ModTime = time.Unix(1_000_000_000, 0)
		if err := out.WriteHeader(&m); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Write([]byte("abc")[:m.Size]); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(out.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	const list = "find . -printf '%p %M %U %T@ %l\\n' | sort"
	want := `./deep drwx--x--x 1000 1000000000.0000000000 
./deep/er drwxr-xr-x 1000 - 
./deep/er/f -rw-r----- 1000 1000000000.0000000000 
./h -rw-r----- 1000 1000000000.0000000000 
./l lrwxrwxrwx 1000 1000000000.0000000000 /etc/passwd
`
	for format, archive := range map[microvm.ArchiveFormat]*bytes.Buffer{plain: &bare, squeezed: &zipped} {
		if _, err := b.unpack(t.Context(), "/srv/"+string(format), archive, format, user); err != nil {
			t.Fatal(err)
		}
		got := ""
		for line := range strings.Lines(b.run(t, "root", "sh", "-ec", "cd /srv/"+string(format)+"; "+list)) {
			fields := strings.SplitN(line, " ", 5)
			switch fields[0] {
			case ".":
				continue
			case "./deep/er":
				fields[3] = "-" // made now
			}
			got += strings.Join(fields, " ")
		}
		if got != want {
			t.Errorf("%s:\n%s", format, differ(want, got))
		}
	}
	// What GNU tar makes, sparse files included.
	b.run(t, "root", "sh", "-ec", "cd /workspace/tree; truncate -s 1M sparse; printf end >>sparse; tar -czSf /workspace/gnu.tgz .")
	archive, err := b.read(t.Context(), "gnu.tgz")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.unpack(t.Context(), "from gnu", bytes.NewReader(archive), squeezed, keep); err != nil {
		t.Fatal(err)
	}
	sums := "cd %q; find . -type f -print0 | sort -z | xargs -0 sha256sum; find . -printf '%%p %%m %%U %%G %%l\\n' | sort"
	before := b.run(t, "root", "sh", "-ec", fmt.Sprintf(sums, "/workspace/tree"))
	if after := b.run(t, "root", "sh", "-ec", fmt.Sprintf(sums, "/workspace/from gnu")); after != before {
		t.Errorf("of GNU tar:\n%s", differ(before, after))
	}
	for what, body := range map[string][]byte{"cut": archive[:len(archive)/2], "garbage": noise(4096), "a broken sum": append(bytes.Clone(archive[:len(archive)-8]), 1, 2, 3, 4, 5, 6, 7, 8)} {
		_, err := b.unpack(t.Context(), "broken", bytes.NewReader(body), squeezed, user)
		refused(t, "an archive that is "+what, err, microvm.ErrorCodeBodyInvalid, "")
	}
	b.noHalves(t)
}
