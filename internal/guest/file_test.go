package guest

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// work is a path in the working directory of a box, as the host sees it.
func (b *box) work(name string) string { return filepath.Join(b.root, "workspace", name) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// put writes a file behind the agent's back.
func (b *box) put(t testing.TB, name, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(b.work(name)), 0o755))
	must(t, os.WriteFile(b.work(name), []byte(text), 0o644))
}

// holds says what a file of the working directory is to hold.
func (b *box) holds(t testing.TB, name, want string) {
	t.Helper()
	if got, err := os.ReadFile(b.work(name)); err != nil || string(got) != want {
		t.Errorf("%s: %.40q %v, want %.40q", name, got, err, want)
	}
}

// detail is what a refusal says beside its code.
func detail(err error) string {
	var refusal *guestwire.Error
	if !errors.As(err, &refusal) {
		return ""
	}
	return refusal.Detail
}

// fillsUp makes the disk full after so many bytes of each file.
func (b *box) fillsUp(after int64) {
	b.agent.fill = func(file io.Writer, body io.Reader) (int64, error) {
		n, err := io.CopyN(file, body, after)
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		return n, errors.Join(err, &fs.PathError{Op: "write", Path: "f", Err: syscall.ENOSPC})
	}
}

func TestReadRanges(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	const text = "0123456789"
	b.put(t, "f", text)
	b.put(t, "empty", "")
	for _, c := range []struct {
		offset, length int64
		want           string
	}{
		{0, -1, text},
		{3, -1, "3456789"},
		{3, 4, "3456"},
		{0, 0, ""},
		{9, 5, "9"},
		{-3, -1, "789"},
		{-3, 2, "78"},
		{-99, -1, text},
		{-99, 3, "012"},
		{math.MinInt64, -1, text},
		{0, math.MaxInt64, text},
		{9, math.MaxInt64, "9"},
	} {
		body, info, err := b.ReadFile(t.Context(), "f", guestwire.Range{Offset: c.offset, Length: c.length})
		if err != nil {
			t.Errorf("%d %d: %v", c.offset, c.length, err)
			continue
		}
		got, err := io.ReadAll(body)
		body.Close()
		if string(got) != c.want || err != nil || info.Size != 10 || info.Length != int64(len(c.want)) || !strings.HasPrefix(text[info.Offset:], c.want) {
			t.Errorf("%d %d: %q %v, %+v", c.offset, c.length, got, err, info)
		}
	}
	for _, offset := range []int64{10, 11, math.MaxInt64} {
		_, _, err := b.ReadFile(t.Context(), "f", guestwire.Range{Offset: offset, Length: -1})
		if !guestwire.Refused(err, guestwire.RangeInvalid) || detail(err) != "10" {
			t.Errorf("%d: %+v", offset, err)
		}
	}
	for _, offset := range []int64{0, -5} {
		body, info, err := b.ReadFile(t.Context(), "empty", guestwire.Range{Offset: offset, Length: -1})
		if err != nil || info.Length != 0 {
			t.Fatalf("empty: %+v %v", info, err)
		}
		body.Close()
	}
}

// What is read says which file it is: another size, time or inode is another
// content.
func TestReadDescribesTheFile(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put(t, "f", "abc")
	must(t, os.Chtimes(b.work("f"), time.Time{}, time.Unix(-5, 7)))
	must(t, os.Chmod(b.work("f"), 0o640))
	body, info, err := b.ReadFile(t.Context(), "f", guestwire.Whole)
	must(t, err)
	body.Close()
	var stat unix.Stat_t
	must(t, unix.Stat(b.work("f"), &stat))
	if info.ModifiedNS != -5e9+7 || info.Mode != "0640" || info.Inode != stat.Ino || info.Size != 3 || info.Path != "" {
		t.Errorf("%+v", info)
	}
	entry, err := b.Stat(t.Context(), "f")
	info.Path = "/workspace/f"
	if err != nil || entry != info.Entry {
		t.Errorf("%+v %v, read said %+v", entry, err, info.Entry)
	}
}

func TestStat(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put(t, "dir/file", "abc")
	must(t, os.Symlink("to \xff where", b.work("link\xfe")))
	must(t, syscall.Mkfifo(b.work("fifo"), 0o600))
	must(t, unix.Mknod(b.work("socket"), unix.S_IFSOCK|0o600, 0))
	must(t, unix.Mknod(b.work("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	must(t, os.Chmod(b.work("dir"), 0o755|fs.ModeSetgid|fs.ModeSticky))
	for path, want := range map[string]guestwire.EntryType{
		"dir": guestwire.TypeDirectory, "dir/file": guestwire.TypeFile, "link\xfe": guestwire.TypeSymlink, "fifo": guestwire.TypeFIFO,
		"socket": guestwire.TypeSocket, "null": guestwire.TypeDevice, ".": guestwire.TypeDirectory, "/": guestwire.TypeDirectory, "..": guestwire.TypeDirectory,
	} {
		entry, err := b.Stat(t.Context(), path)
		if err != nil || entry.Type != want {
			t.Errorf("%q: %+v %v", path, entry, err)
		}
	}
	if entry, err := b.Stat(t.Context(), "link\xfe"); err != nil || entry.Target != "to \xff where" || entry.Path != "/workspace/link\xfe" {
		t.Errorf("%+v %v", entry, err)
	}
	if entry, err := b.Stat(t.Context(), "dir/"); err != nil || entry.Mode != "3755" {
		t.Errorf("%+v %v", entry, err)
	}
	for path, want := range map[string]guestwire.Code{
		"none": guestwire.FileNotFound, "dir/file/x": guestwire.FileNotFound, "": guestwire.BadRequest, "a\x00b": guestwire.BadRequest,
		strings.Repeat("a", 300): guestwire.BadRequest,
	} {
		if _, err := b.Stat(t.Context(), path); !guestwire.Refused(err, want) {
			t.Errorf("%.20q: %v, want %s", path, err, want)
		}
	}
}

func TestAppend(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	size := int64(0)
	var want strings.Builder
	for i, text := range []string{"one", "", strings.Repeat("two", 100_000), "three"} {
		entry, err := b.AppendFile(t.Context(), "new/f", size, 0o640, strings.NewReader(text))
		size += int64(len(text))
		want.WriteString(text)
		if err != nil || entry.Size != size || entry.Mode != "0640" || entry.Path != "/workspace/new/f" {
			t.Fatalf("%d: %+v %v", i, entry, err)
		}
		b.holds(t, "new/f", want.String())
	}
	for _, at := range []int64{0, size - 1, size + 1, math.MaxInt64} {
		if _, err := b.AppendFile(t.Context(), "new/f", at, 0o644, strings.NewReader("x")); !guestwire.Refused(err, guestwire.Conflict) {
			t.Errorf("at %d: %v", at, err)
		}
	}
	must(t, os.Symlink("new/f", b.work("link")))
	if _, err := b.AppendFile(t.Context(), "link", size, 0o600, strings.NewReader("!")); err != nil {
		t.Errorf("a link is followed: %v", err)
	}
	b.holds(t, "new/f", want.String()+"!")
	must(t, syscall.Mkfifo(b.work("fifo"), 0o600))
	for path, want := range map[string]guestwire.Code{
		"new": guestwire.NotAFile, "fifo": guestwire.NotAFile, "new/f/x": guestwire.NotAFile, "new/": guestwire.NotAFile,
	} {
		if _, err := b.AppendFile(t.Context(), path, 0, 0o644, strings.NewReader("x")); !guestwire.Refused(err, want) {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
	if _, err := b.AppendFile(t.Context(), "none", 3, 0o644, strings.NewReader("x")); !guestwire.Refused(err, guestwire.FileNotFound) {
		t.Errorf("none: %v", err)
	}
	if _, err := b.AppendFile(t.Context(), "new/f", -1, 0o644, strings.NewReader("x")); !guestwire.Refused(err, guestwire.BadRequest) {
		t.Errorf("negative: %v", err)
	}
}

// Of appenders that race for the same end one adds, whole, and the others are
// told.
func TestAppendersNeverMix(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	var mu sync.Mutex
	var size int64
	for round := range 20 {
		var group sync.WaitGroup
		winners := 0
		at := size
		for i := range 6 {
			group.Go(func() {
				text := bytes.Repeat([]byte{byte('a' + i)}, 70_000+i)
				_, err := b.AppendFile(t.Context(), "f", at, 0o644, bytes.NewReader(text))
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					winners++
					size = at + int64(len(text))
				} else if !guestwire.Refused(err, guestwire.Conflict) {
					t.Error(err)
				}
			})
		}
		group.Wait()
		data, err := os.ReadFile(b.work("f"))
		must(t, err)
		if winners != 1 || int64(len(data)) != size || bytes.Count(data[at:], data[at:at+1]) != len(data)-int(at) {
			t.Fatalf("round %d: %d winners, %d bytes, want %d", round, winners, len(data), size)
		}
	}
	b.onlyFiles(t, "f")
}

func TestAppendIsWholeOrNothing(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put(t, "f", "old")
	b.fillsUp(100_000)
	long := func() io.Reader { return bytes.NewReader(make([]byte, 1<<20)) }
	if _, err := b.AppendFile(t.Context(), "f", 3, 0o644, long()); !guestwire.Refused(err, guestwire.DiskFull) {
		t.Errorf("full disk: %v", err)
	}
	if _, err := b.AppendFile(t.Context(), "a/b/new", 0, 0o644, long()); !guestwire.Refused(err, guestwire.DiskFull) {
		t.Errorf("full disk: %v", err)
	}
	b.agent.fill = fill
	broken := io.MultiReader(bytes.NewReader(make([]byte, 200_000)), failing{})
	if _, err := b.AppendFile(t.Context(), "f", 3, 0o644, broken); err == nil {
		t.Error("broken body: no error")
	}
	must(t, b.agent.Close()) // waits for the handler
	b.holds(t, "f", "old")
	b.onlyFiles(t, "f")
}

// Whoever replaces the file while it is added to, or adds to it too, makes it a
// conflict, and what the other wrote stays.
func TestAppendSeesOthers(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put(t, "f", "old")
	b.put(t, "g", "old")
	b.put(t, "h", "old")
	b.put(t, "other", "other")
	b.agent.fill = func(file io.Writer, body io.Reader) (int64, error) {
		n, err := fill(file, body)
		must(t, os.Rename(b.work("other"), b.work("f")))
		return n, err
	}
	if _, err := b.AppendFile(t.Context(), "f", 3, 0o644, strings.NewReader("x")); !guestwire.Refused(err, guestwire.Conflict) {
		t.Errorf("replaced: %v", err)
	}
	b.holds(t, "f", "other")
	b.agent.fill = func(file io.Writer, body io.Reader) (int64, error) {
		n, err := fill(file, body)
		must(t, os.WriteFile(b.work("g"), []byte("old and longer"), 0o644))
		return n, err
	}
	if _, err := b.AppendFile(t.Context(), "g", 3, 0o644, strings.NewReader("x")); !guestwire.Refused(err, guestwire.Conflict) {
		t.Errorf("longer: %v", err)
	}
	b.holds(t, "g", "old and longer")
	b.agent.fill = fill
	file, err := os.Open(b.work("h"))
	must(t, err)
	defer file.Close()
	must(t, unix.Flock(int(file.Fd()), unix.LOCK_SH))
	if _, err := b.AppendFile(t.Context(), "h", 3, 0o644, strings.NewReader("x")); !guestwire.Refused(err, guestwire.Conflict) {
		t.Errorf("locked by a program: %v", err)
	}
	b.holds(t, "h", "old")
}

func TestMakeDir(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	entry, err := b.MakeDir(t.Context(), "a/b/c", 0o701)
	if err != nil || entry.Path != "/workspace/a/b/c" || entry.Mode != "0701" || entry.Type != guestwire.TypeDirectory {
		t.Errorf("%+v %v", entry, err)
	}
	if entry, err = b.MakeDir(t.Context(), "a/b/c", 0o755); err != nil || entry.Mode != "0701" {
		t.Errorf("again: %+v %v", entry, err)
	}
	if entry, err = b.MakeDir(t.Context(), "a/b", 0o700); err != nil || entry.Mode != "0755" {
		t.Errorf("parent: %+v %v", entry, err)
	}
	must(t, os.Symlink("a", b.work("link")))
	must(t, os.Symlink("nowhere", b.work("dangling")))
	if entry, err = b.MakeDir(t.Context(), "link", 0o700); err != nil || entry.Type != guestwire.TypeDirectory || entry.Path != "/workspace/link" {
		t.Errorf("link: %+v %v", entry, err)
	}
	for _, path := range []string{"/", ".", "../workspace"} {
		if entry, err := b.MakeDir(t.Context(), path, 0o700); err != nil || entry.Type != guestwire.TypeDirectory {
			t.Errorf("%s: %+v %v", path, entry, err)
		}
	}
	b.put(t, "file", "x")
	for path, want := range map[string]guestwire.Code{
		"file": guestwire.Exists, "file/x": guestwire.Exists, "dangling": guestwire.Exists, "": guestwire.BadRequest, "new/" + strings.Repeat("a", 300): guestwire.BadRequest,
	} {
		if _, err := b.MakeDir(t.Context(), path, 0o755); !guestwire.Refused(err, want) {
			t.Errorf("%.20s: %v, want %s", path, err, want)
		}
	}
	if _, err := b.MakeDir(t.Context(), "x", 0o1777); !guestwire.Refused(err, guestwire.BadRequest) {
		t.Errorf("mode: %v", err)
	}
	b.onlyFiles(t, "a", "dangling", "file", "link")
}

func TestMove(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put(t, "f", "f")
	b.put(t, "g", "g")
	b.put(t, "dir/x", "x")
	must(t, os.Mkdir(b.work("hollow"), 0o755))
	must(t, os.Symlink("f", b.work("link")))
	move := func(from, to string, replace bool) error {
		t.Helper()
		entry, err := b.Move(t.Context(), guestwire.Move{From: from, To: to, Replace: replace})
		if err == nil && entry.Path != filepath.Join("/workspace", to) {
			t.Errorf("%s to %s: %+v", from, to, entry)
		}
		return err
	}
	for _, c := range []struct {
		from, to string
		replace  bool
		want     guestwire.Code
	}{
		{"f", "g", false, guestwire.Exists},
		{"f", "f", false, guestwire.Exists},
		{"f", "hollow", true, guestwire.Exists},
		{"hollow", "f", true, guestwire.NotAFile},
		{"hollow", "dir", true, guestwire.NotEmpty},
		{"dir", "dir/in", false, guestwire.BadRequest},
		{"dir", "dir/in", true, guestwire.BadRequest},
		{"none", "x", false, guestwire.FileNotFound},
		{"f", "none/x", false, guestwire.FileNotFound},
		{"f", "g/x", true, guestwire.NotAFile},
		{".", "x", true, guestwire.BadRequest},
		{"dir", ".", true, guestwire.BadRequest},
		{"/", "x", true, guestwire.BadRequest},
		{"", "x", true, guestwire.BadRequest},
		{"f", "", true, guestwire.BadRequest},
		{"f", "\x00", true, guestwire.BadRequest},
	} {
		if err := move(c.from, c.to, c.replace); !guestwire.Refused(err, c.want) {
			t.Errorf("%q to %q: %v, want %s", c.from, c.to, err, c.want)
		}
	}
	must(t, move("f", "moved", false))
	must(t, move("moved", "g", true))
	b.holds(t, "g", "f")
	must(t, move("link", "dir/link\xff", false))
	must(t, move("dir", "hollow", true))
	b.holds(t, "hollow/x", "x")
	if target, err := os.Readlink(b.work("hollow/link\xff")); err != nil || target != "f" {
		t.Errorf("%q %v", target, err)
	}
	b.onlyFiles(t, "g", "hollow")
}

// A move to another file system is refused: a copy would be no move.
func TestMoveToAnotherDisk(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put(t, "f", "f")
	other, err := os.MkdirTemp("/dev/shm", "guest-test")
	must(t, err)
	defer os.RemoveAll(other)
	must(t, os.Symlink(other, b.work("other")))
	if _, err := b.Move(t.Context(), guestwire.Move{From: "f", To: "other/f"}); !guestwire.Refused(err, guestwire.OtherDisk) {
		t.Errorf("got %v", err)
	}
	b.holds(t, "f", "f")
}
