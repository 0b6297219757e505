package guest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/microvmd/microvm/internal/guestwire"
)

func (b *box) read(t testing.TB, path string) ([]byte, error) {
	t.Helper()
	body, info, err := b.ReadFile(t.Context(), path, guestwire.Whole)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	data, err := io.ReadAll(body)
	if err == nil && int64(len(data)) != info.Length {
		t.Errorf("%s: %d bytes came, %d were announced", path, len(data), info.Length)
	}
	return data, err
}

func TestFileRoundTrip(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	want := pattern(0, 0, 3<<20+17)
	info, err := b.WriteFile(t.Context(), "a/b c/é.bin", 0o750, bytes.NewReader(want))
	if err != nil {
		t.Fatal(err)
	}
	if info.Path != "/workspace/a/b c/é.bin" || info.Size != int64(len(want)) || info.Mode != "0750" || info.Type != guestwire.TypeFile {
		t.Errorf("got %+v", info)
	}
	for _, path := range []string{"a/b c/é.bin", "/workspace/a/./b c/é.bin", "../workspace/a/b c/é.bin"} {
		if got, err := b.read(t, path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v", path, len(got), err)
		}
	}
	stat, err := os.Stat(filepath.Join(b.root, "workspace/a/b c/é.bin"))
	if err != nil || stat.Mode().Perm() != 0o750 {
		t.Errorf("mode %v, %v", stat.Mode(), err)
	}
	if _, err := b.WriteFile(t.Context(), "empty", 0o644, strings.NewReader("")); err != nil {
		t.Error(err)
	}
	if got, err := b.read(t, "empty"); err != nil || len(got) != 0 {
		t.Errorf("empty: %q %v", got, err)
	}
}

// Writers that race leave one of their files, whole; readers see whole ones.
func TestWriteIsAtomic(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	content := func(i int) []byte { return bytes.Repeat([]byte{byte('a' + i)}, 50_000+i) }
	whole := func(data []byte) bool { return len(data) > 0 && bytes.Equal(data, content(int(data[0]-'a'))) }
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for range 5 {
				if _, err := b.WriteFile(t.Context(), "f", 0o644, bytes.NewReader(content(i))); err != nil {
					t.Error(err)
				}
				if data, err := b.read(t, "f"); err != nil || !whole(data) {
					t.Errorf("%d bytes, %v", len(data), err)
				}
			}
		})
	}
	group.Wait()
	b.onlyFiles(t, "f")
}

// onlyFiles says that the working directory holds nothing else.
func (b *box) onlyFiles(t testing.TB, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(b.root, "workspace"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("left behind: %v, want %v", got, want)
	}
}

func TestFileRefusals(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	work := filepath.Join(b.root, "workspace")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(syscall.Mkfifo(filepath.Join(work, "fifo"), 0o600))
	must(os.Mkdir(filepath.Join(work, "dir"), 0o755))
	must(os.WriteFile(filepath.Join(work, "file"), nil, 0o644))
	must(os.Symlink("fifo", filepath.Join(work, "tofifo")))
	must(os.Symlink("loop", filepath.Join(work, "loop")))
	for path, want := range map[string]guestwire.Code{
		"none": guestwire.FileNotFound, "none/x": guestwire.FileNotFound, "dir": guestwire.NotAFile, "fifo": guestwire.NotAFile,
		"tofifo": guestwire.NotAFile, "file/x": guestwire.FileNotFound, "loop": guestwire.FileNotFound, "": guestwire.BadRequest,
		strings.Repeat("a", guestwire.MaxPath+1): guestwire.BadRequest, "a\x00b": guestwire.BadRequest, strings.Repeat("a", 300): guestwire.BadRequest,
	} {
		if _, err := b.read(t, path); !guestwire.Refused(err, want) {
			t.Errorf("read %.20q: got %v, want %s", path, err, want)
		}
	}
	for path, want := range map[string]guestwire.Code{
		"dir": guestwire.NotAFile, "fifo": guestwire.NotAFile, "file/x": guestwire.NotAFile, "new/": guestwire.NotAFile, "": guestwire.BadRequest,
	} {
		if _, err := b.WriteFile(t.Context(), path, 0o644, strings.NewReader("x")); !guestwire.Refused(err, want) {
			t.Errorf("write %q: got %v, want %s", path, err, want)
		}
	}
	if _, err := b.WriteFile(t.Context(), "x", 0o4755, strings.NewReader("x")); !guestwire.Refused(err, guestwire.BadRequest) {
		t.Errorf("setuid: %v", err)
	}
	if _, err := b.WriteFile(t.Context(), "tofifo", 0o644, strings.NewReader("x")); err != nil {
		t.Errorf("a link is replaced: %v", err)
	}
	b.onlyFiles(t, "dir", "fifo", "file", "loop", "tofifo")
}

// A full disk leaves the old file and nothing else, and the client of a large
// upload gets to know why.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	if _, err := b.WriteFile(t.Context(), "f", 0o644, strings.NewReader("old")); err != nil {
		t.Fatal(err)
	}
	b.agent.fill = func(file io.Writer, body io.Reader) (int64, error) {
		n, err := io.CopyN(file, body, 100_000)
		return n, errors.Join(err, &fs.PathError{Op: "write", Path: "f", Err: syscall.ENOSPC})
	}
	if _, err := b.WriteFile(t.Context(), "f", 0o644, bytes.NewReader(make([]byte, 4<<20))); !guestwire.Refused(err, guestwire.DiskFull) {
		t.Errorf("got %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(b.root, "workspace/f")); err != nil || string(got) != "old" {
		t.Errorf("the old file: %q %v", got, err)
	}
	b.onlyFiles(t, "f")
}

// A body that breaks off leaves nothing.
func TestBrokenUpload(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	broken := io.MultiReader(bytes.NewReader(make([]byte, 200_000)), failing{})
	if _, err := b.WriteFile(t.Context(), "f", 0o644, broken); err == nil {
		t.Fatal("no error")
	}
	if err := b.agent.Close(); err != nil { // waits for the handler
		t.Fatal(err)
	}
	b.onlyFiles(t)
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the source broke") }

func TestFileWorkIsBounded(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	for range maxFileWork {
		b.agent.files <- struct{}{}
	}
	if _, err := b.read(t, "f"); !guestwire.Refused(err, guestwire.TooMuch) {
		t.Errorf("got %v", err)
	}
}
