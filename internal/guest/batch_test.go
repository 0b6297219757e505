package guest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
)

func newFiles(paths ...string) []guestwire.NewFile {
	var files []guestwire.NewFile
	for i, path := range paths {
		files = append(files, guestwire.NewFile{Path: path, Mode: 0o640, Content: []byte(fmt.Sprint("content ", i))})
	}
	return files
}

func TestBatch(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put(t, "old", "old")
	must(t, os.Symlink("nowhere", b.work("link")))
	files := append(newFiles("a/b/new", "old", "link", "a/\xff", "/workspace/abs"), guestwire.NewFile{Path: "large", Content: pattern(0, 0, 300_000)}, guestwire.NewFile{Path: "empty"})
	entries, err := b.WriteFiles(t.Context(), files)
	must(t, err)
	for i, file := range files {
		entry, err := b.Stat(t.Context(), file.Path)
		if err != nil || entry != entries[i] || entry.Size != int64(len(file.Content)) {
			t.Errorf("%q: %+v %v, told %+v", file.Path, entry, err, entries[i])
		}
		if data, err := b.read(t, file.Path); file.Mode != 0 && (err != nil || !bytes.Equal(data, file.Content)) {
			t.Errorf("%q: %.20q %v", file.Path, data, err)
		}
	}
	b.onlyFiles(t, "a", "abs", "empty", "large", "link", "old")
	if entries, err := b.WriteFiles(t.Context(), nil); err != nil || len(entries) != 0 {
		t.Errorf("none: %v %v", entries, err)
	}
	if _, err := b.WriteFiles(t.Context(), make([]guestwire.NewFile, guestwire.MaxBatch+1)); err == nil {
		t.Error("too many: no error")
	}
}

// Whatever refuses one file of a batch, nothing of it is there: no file, no
// directory, and what was there before is as it was.
func TestBatchIsAllOrNothing(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put(t, "old", "old")
	b.put(t, "dir/x", "x")
	must(t, syscall.Mkfifo(b.work("fifo"), 0o600))
	unchanged := func() {
		t.Helper()
		b.holds(t, "old", "old")
		b.holds(t, "dir/x", "x")
		b.onlyFiles(t, "dir", "fifo", "old")
	}
	for path, want := range map[string]guestwire.Code{
		"dir": guestwire.NotAFile, "fifo": guestwire.NotAFile, "old/x": guestwire.NotAFile, "n/": guestwire.NotAFile, "n/m": guestwire.NotAFile,
		"": guestwire.BadRequest, "a\x00": guestwire.BadRequest, strings.Repeat("a", 300): guestwire.BadRequest,
	} {
		for _, place := range []int{0, 3} {
			paths := []string{"old", "n", "new/deep/er"}
			if path == "n/m" {
				place = 3
			}
			paths = append(paths[:place:place], append([]string{path}, paths[place:]...)...)
			_, err := b.WriteFiles(t.Context(), newFiles(paths...))
			if !guestwire.Refused(err, want) || !strings.HasPrefix(path, strings.Trim(detail(err), "\x00")) {
				t.Errorf("%.20q: %v, want %s, detail %.20q", path, err, want, detail(err))
			}
			unchanged()
		}
	}
	files := newFiles("old", "new/deep/er", "large")
	files[2].Content = make([]byte, 1<<20)
	b.fillsUp(100_000)
	if _, err := b.WriteFiles(t.Context(), files); !guestwire.Refused(err, guestwire.DiskFull) {
		t.Errorf("full disk: %v", err)
	}
	unchanged()
	files[1].Mode = 0o4755
	if _, err := b.WriteFiles(t.Context(), files); !guestwire.Refused(err, guestwire.BadRequest) {
		t.Errorf("mode: %v", err)
	}
	unchanged()
}

// A batch whose last file cannot be brought to its place takes the others back,
// also those that replaced something.
func TestBatchGoesBack(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put(t, "old", "old")
	must(t, os.Symlink("nowhere", b.work("link")))
	b.agent.fill = func(file io.Writer, body io.Reader) (int64, error) {
		if _, err := os.Lstat(b.work("last")); errors.Is(err, fs.ErrNotExist) {
			return fill(file, body)
		}
		// Somebody makes a directory where a file was to be, after it was looked.
		n, err := fill(file, body)
		return n, errors.Join(err, os.Mkdir(b.work("late"), 0o755), os.WriteFile(b.work("late/x"), nil, 0o644))
	}
	b.put(t, "last", "last")
	_, err := b.WriteFiles(t.Context(), newFiles("late"))
	if !guestwire.Refused(err, guestwire.NotAFile) {
		t.Errorf("alone: %v", err)
	}
	must(t, os.RemoveAll(b.work("late")))
	must(t, os.Remove(b.work("last")))
	calls := 0
	b.agent.fill = func(file io.Writer, body io.Reader) (int64, error) {
		if calls++; calls == 5 {
			must(t, os.MkdirAll(b.work("late/x"), 0o755))
		}
		return fill(file, body)
	}
	if _, err = b.WriteFiles(t.Context(), newFiles("old", "d/new", "link", "old", "late")); !guestwire.Refused(err, guestwire.NotAFile) {
		t.Errorf("in the end: %v", err)
	}
	b.holds(t, "old", "old")
	if target, err := os.Readlink(b.work("link")); target != "nowhere" {
		t.Errorf("%q %v", target, err)
	}
	b.onlyFiles(t, "late", "link", "old")
}

// brokenRequest sends text to an agent and closes the connection in the middle of
// it; it returns once the agent has ended the request.
func (b *box) brokenRequest(t testing.TB, text string) {
	t.Helper()
	conn, err := net.Dial("unix", b.sock)
	must(t, err)
	_, err = io.WriteString(conn, text)
	must(t, errors.Join(err, conn.Close()))
	must(t, b.agent.Close())
}

// Bodies that break off anywhere leave nothing, of a batch too.
func TestBrokenBatchLeavesNothing(t *testing.T) {
	t.Parallel()
	var body []byte
	var ends []int
	for _, file := range newFiles("a/b", "old", "c") {
		head, err := guestwire.AppendFileHead(nil, guestwire.FileHead{Path: file.Path, Mode: file.Mode, Size: int64(len(file.Content))})
		must(t, err)
		body = append(append(body, head...), file.Content...)
		ends = append(ends, len(body))
	}
	for cut := range len(body) + 1 {
		b := newBox(t)
		b.put(t, "old", "old")
		// Length and chunks, both not kept.
		head := fmt.Sprintf("POST /v1/files/batch HTTP/1.1\r\nContent-Length: %d\r\n\r\n", len(body)+1)
		if cut%2 == 1 {
			head = fmt.Sprintf("POST /v1/files/batch HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n", len(body))
		}
		b.brokenRequest(t, head+string(body[:cut]))
		b.holds(t, "old", "old")
		b.onlyFiles(t, "old")
	}
	// One whose body ends as it said, but amid a file.
	b := newBox(t)
	for cut := range len(body) {
		conn, err := net.Dial("unix", b.sock)
		must(t, err)
		whole := false
		for _, end := range append(ends, 0) {
			whole = whole || cut == end
		}
		_, err = fmt.Fprintf(conn, "POST /v1/files/batch HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", cut, body[:cut])
		must(t, err)
		answer, err := io.ReadAll(conn)
		if err != nil || strings.HasPrefix(string(answer), "HTTP/1.1 200") != whole {
			t.Errorf("cut at %d: %.100q %v", cut, answer, err)
		}
		if !whole {
			b.onlyFiles(t)
		}
		must(t, os.RemoveAll(b.work("")))
		must(t, os.Mkdir(b.work(""), 0o755))
	}
}

// Two batches over the same files: each file is one of the two, whole.
func TestBatchesRace(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			var files []guestwire.NewFile
			for n := range 20 {
				files = append(files, guestwire.NewFile{Path: fmt.Sprintf("d/%d", n), Content: bytes.Repeat([]byte{byte('a' + i)}, 1000+i)})
			}
			for range 5 {
				if _, err := b.WriteFiles(t.Context(), files); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	for n := range 20 {
		data, err := os.ReadFile(b.work(fmt.Sprintf("d/%d", n)))
		if err != nil || !bytes.Equal(data, bytes.Repeat(data[:1], 1000+int(data[0]-'a'))) {
			t.Errorf("%d: %d bytes, %v", n, len(data), err)
		}
	}
	if entries, err := os.ReadDir(b.work("d")); err != nil || len(entries) != 20 {
		t.Errorf("%d entries, %v", len(entries), err)
	}
}

// Writers that fail beside writers that do not: the directories that the former
// take away again do not trouble the latter.
func TestFailingWritersDoNoHarm(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			for range 100 {
				path := fmt.Sprintf("deep/er/%d", i)
				if i%2 == 0 {
					if _, err := b.WriteFiles(t.Context(), newFiles(path, path+"/x")); !guestwire.Refused(err, guestwire.NotAFile) && !guestwire.Refused(err, guestwire.FileNotFound) {
						t.Error(err)
					}
				} else if _, err := b.WriteFile(t.Context(), path, 0o644, strings.NewReader("x")); err != nil {
					t.Error(err)
				} else if _, err := b.Remove(t.Context(), path, false); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}

// A reply that takes long gives signs of life, and may be a refusal after all.
func TestLateReplies(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.agent.signs = time.Millisecond
	var mu sync.Mutex
	enough := make(chan struct{})
	signs := 0
	ctx := guestwire.WithMoved(t.Context(), func() {
		mu.Lock()
		defer mu.Unlock()
		if signs++; signs == 3 {
			close(enough)
		}
	})
	var fails error
	b.agent.fill = func(file io.Writer, body io.Reader) (int64, error) {
		<-enough
		n, err := fill(file, body)
		return n, errors.Join(err, fails)
	}
	entries, err := b.WriteFiles(ctx, newFiles("a"))
	if err != nil || len(entries) != 1 || entries[0].Path != "/workspace/a" {
		t.Errorf("%+v %v", entries, err)
	}
	fails, signs, enough = syscall.ENOSPC, 0, make(chan struct{})
	if _, err := b.WriteFiles(ctx, newFiles("b")); !guestwire.Refused(err, guestwire.DiskFull) || detail(err) != "b" {
		t.Errorf("got %v", err)
	}
	b.onlyFiles(t, "a")
}
