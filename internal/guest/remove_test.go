package guest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

func TestRemove(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put(t, "f", "f")
	b.put(t, "dir/x", "x")
	b.put(t, "kept/x", "x")
	must(t, os.Symlink("kept", b.work("link")))
	must(t, os.Symlink("../kept", b.work("dir/link")))
	must(t, syscall.Mkfifo(b.work("dir/fifo"), 0o600))
	must(t, os.Mkdir(b.work("hollow"), 0o755))
	for i := range 300 {
		b.put(t, fmt.Sprintf("many/%d/\xff%d", i%3, i), "")
	}
	remove := func(path string, recursive bool) (int64, error) {
		removed, err := b.Remove(t.Context(), path, recursive)
		return removed.Entries, err
	}
	for path, want := range map[string]guestwire.Code{
		"none": guestwire.FileNotFound, "none/x": guestwire.FileNotFound, "f/x": guestwire.FileNotFound, "dir": guestwire.NotEmpty, "": guestwire.BadRequest,
		"/": guestwire.BadRequest, ".": guestwire.BadRequest, "..": guestwire.BadRequest, "/workspace/": guestwire.BadRequest, "a\x00": guestwire.BadRequest,
	} {
		if _, err := remove(path, false); !guestwire.Refused(err, want) {
			t.Errorf("%q: %v, want %s", path, err, want)
		}
		if _, err := remove(path, true); path != "dir" && !guestwire.Refused(err, want) {
			t.Errorf("%q, recursive: %v, want %s", path, err, want)
		}
		b.put(t, "dir/x", "x")
		must(t, os.RemoveAll(b.work("dir/link")))
		must(t, os.Symlink("../kept", b.work("dir/link")))
	}
	for _, c := range []struct {
		path      string
		recursive bool
		want      int64
	}{{"f", false, 1}, {"link", true, 1}, {"hollow", false, 1}, {"dir", true, 4 - 1}, {"many", true, 304}} {
		if n, err := remove(c.path, c.recursive); err != nil || n != c.want {
			t.Errorf("%s: %d %v, want %d", c.path, n, err, c.want)
		}
	}
	b.onlyFiles(t, "kept")
	b.holds(t, "kept/x", "x")
}

// A working directory that is reached by another way is kept as well.
func TestRemoveKeepsTheWorkingDirectory(t *testing.T) {
	t.Parallel()
	b := newBareBox(t)
	conf := configuration(1)
	conf.Workdir = "/home/user/work"
	if _, err := b.Configure(t.Context(), conf); err != nil {
		t.Fatal(err)
	}
	must(t, os.Symlink("user", filepath.Join(b.root, "home/link")))
	for _, path := range []string{"/home", "/home/user", "/home/link/work", "../work", "..", "/home/user/work"} {
		if _, err := b.Remove(t.Context(), path, true); !guestwire.Refused(err, guestwire.BadRequest) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := b.Remove(t.Context(), "/home/link", true); err != nil {
		t.Errorf("a link on the way: %v", err)
	}
	if _, err := os.Stat(filepath.Join(b.root, "home/user/work")); err != nil {
		t.Error(err)
	}
}

// A tree that is deeper than a path may be long is removed; one that would take
// more descriptors than there are is refused.
func TestRemoveDeepTrees(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	grow := func(name string, levels int) {
		t.Helper()
		must(t, os.Mkdir(b.work(name), 0o755))
		fd, err := unix.Open(b.work(name), unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(t, err)
		long := strings.Repeat("d", 100)
		for range levels {
			must(t, unix.Mkdirat(fd, long, 0o755))
			next, err := unix.Openat(fd, long, unix.O_RDONLY|unix.O_DIRECTORY, 0)
			must(t, err)
			must(t, unix.Close(fd))
			fd = next
		}
		must(t, unix.Close(fd))
	}
	grow("deep", 500)
	if removed, err := b.Remove(t.Context(), "deep", true); err != nil || removed.Entries != 501 {
		t.Errorf("%+v %v", removed, err)
	}
	grow("deeper", 1100)
	if _, err := b.Remove(t.Context(), "deeper", true); !guestwire.Refused(err, guestwire.TooDeep) {
		t.Errorf("got %v", err)
	}
	if _, _, err := b.List(t.Context(), guestwire.List{Path: "deeper", Depth: 32, Limit: 1000}); err != nil {
		t.Error(err)
	}
}

// swapper swaps directories and links that lead out of the tree all the time,
// until it is stopped. Between two swaps others get as far as rest lets them.
func swapper(rest int, pairs ...[2]string) (stop func()) {
	done := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		for {
			for _, pair := range pairs {
				_ = unix.Renameat2(unix.AT_FDCWD, pair[0], unix.AT_FDCWD, pair[1], unix.RENAME_EXCHANGE)
			}
			select {
			case <-done:
				return
			default:
				for range rand.IntN(rest) {
					runtime.Gosched()
				}
			}
		}
	})
	return sync.OnceFunc(func() {
		close(done)
		group.Wait()
	})
}

// guarded is a directory outside in which nothing may change.
func guarded(t testing.TB, names ...string) (dir string, unchanged func()) {
	t.Helper()
	dir = t.TempDir()
	census := func() string {
		var all []string
		must(t, filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
			if err != nil {
				return err
			}
			var stat unix.Stat_t
			must(t, unix.Lstat(path, &stat))
			text := ""
			if info.Mode().IsRegular() {
				data, err := os.ReadFile(path)
				must(t, err)
				text = string(data)
			}
			all = append(all, fmt.Sprint(path, stat.Mode, stat.Uid, stat.Mtim, stat.Nlink, text))
			return nil
		}))
		return strings.Join(all, "\n")
	}
	for _, name := range names {
		must(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("outside"), 0o644))
	}
	before := census()
	return dir, func() {
		t.Helper()
		if after := census(); after != before {
			t.Errorf("outside was:\n%s\nis:\n%s", before, after)
		}
	}
}

// A program that swaps directories for links while they are removed loses what
// lies in the tree, and nothing else.
func TestRemoveFollowsNoSwappedLink(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	outside, unchanged := guarded(t, "x", "sub/x", "sub/y/z")
	done := 0
	for round := range 40 {
		var pairs [][2]string
		for i := range 40 {
			b.put(t, fmt.Sprintf("tree/%d/x", i), "")
			b.put(t, fmt.Sprintf("tree/%d/y/z", i), "")
			pairs = append(pairs, [2]string{b.work(fmt.Sprintf("tree/%d", i)), b.work(fmt.Sprintf("tree/l%d", i))})
			must(t, os.Symlink(filepath.Join(outside, "sub"), pairs[i][1]))
		}
		stop := swapper(5, pairs...)
		_, err := b.Remove(t.Context(), "tree", true)
		stop()
		if err == nil {
			done++
		} else if !guestwire.Refused(err, guestwire.NotEmpty) {
			t.Errorf("round %d: %v", round, err)
		}
		must(t, os.RemoveAll(b.work("tree")))
	}
	unchanged()
	if done == 0 {
		t.Error("no removal came to its end")
	}
}
