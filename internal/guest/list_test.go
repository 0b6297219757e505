package guest

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/microvmd/microvm/internal/guestwire"
)

// pages lists all pages of a directory, as paths relative to it.
func (b *box) pages(t testing.TB, list guestwire.List) (names []string, pages int) {
	t.Helper()
	root := filepath.Join("/workspace", list.Path)
	for {
		entries, more, err := b.List(t.Context(), list)
		if err != nil {
			t.Fatal(err)
		}
		pages++
		for _, entry := range entries {
			names = append(names, strings.TrimPrefix(entry.Path, root+"/"))
		}
		if !more {
			return names, pages
		}
		if len(entries) == 0 {
			t.Fatal("an empty page, and more")
		}
		list.After = names[len(names)-1]
	}
}

// truths is what lies beneath a directory, in the order of lists.
func truths(t testing.TB, root string, depth int) (names []string) {
	t.Helper()
	must(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		name := strings.TrimPrefix(path, root+"/")
		names = append(names, name)
		if entry.IsDir() && strings.Count(name, "/")+1 == depth {
			return fs.SkipDir
		}
		return nil
	}))
	slices.SortFunc(names, guestwire.ComparePaths)
	return names
}

// A list in pages of any size is the list, whatever the names are.
func TestListPages(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 5000 {
		name := fmt.Sprintf("dir/%d", i)
		switch i % 5 {
		case 1:
			name = fmt.Sprintf("dir/\xff\xfe%d\x80", i)
		case 2:
			name = fmt.Sprintf("dir/%s%d", string(rune(rng.IntN(0xd000)+0x20)), i)
			name = strings.ReplaceAll(name, "//", "/.")
		case 3:
			name = fmt.Sprintf("dir/ %d\n\t", i)
		}
		must(t, os.MkdirAll(filepath.Dir(b.work(name)), 0o755))
		must(t, os.WriteFile(b.work(name), nil, 0o644))
	}
	want := truths(t, b.work("dir"), 1)
	if len(want) < 4990 {
		t.Fatalf("only %d names", len(want))
	}
	for _, limit := range []int{7, 333, 1000} {
		names, pages := b.pages(t, guestwire.List{Path: "dir", Depth: 1, Limit: limit})
		if !slices.Equal(names, want) || pages != (len(want)+limit-1)/limit {
			t.Errorf("limit %d: %d names in %d pages, want %d", limit, len(names), pages, len(want))
		}
	}
}

// A tree is listed to the depth that was asked for, in pages that begin and end
// anywhere in it.
func TestListTree(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	rng := rand.New(rand.NewPCG(3, 4))
	names := []string{"a", "a.b", "a-", "a0", "b", "\x01", "\xff", "aa"}
	for range 400 {
		parts := []string{"tree"}
		for range rng.IntN(6) {
			parts = append(parts, names[rng.IntN(len(names))])
		}
		path := b.work(filepath.Join(parts...))
		if rng.IntN(3) > 0 {
			_ = os.MkdirAll(path, 0o755)
		} else if os.MkdirAll(filepath.Dir(path), 0o755) == nil {
			_ = os.WriteFile(path, nil, 0o644)
		}
	}
	must(t, os.Symlink("..", b.work("tree/loop")))
	must(t, syscall.Mkfifo(b.work("tree/fifo"), 0o600))
	for depth := 1; depth <= 7; depth++ {
		want := truths(t, b.work("tree"), depth)
		for _, limit := range []int{3, 13, 1000} {
			if names, _ := b.pages(t, guestwire.List{Path: "tree", Depth: depth, Limit: limit}); !slices.Equal(names, want) {
				t.Fatalf("depth %d limit %d: %q, want %q", depth, limit, names, want)
			}
		}
		// From a place where nothing is, or that is no directory.
		for _, after := range []string{"a/a/nothing", "a/a.b/b/x/y/z", "0", "zzz", "fifo/x", "loop/x", "a//b/"} {
			from, _ := slices.BinarySearchFunc(want, filepath.Clean(after), guestwire.ComparePaths)
			rest := want[from:]
			if len(rest) > 0 && rest[0] == filepath.Clean(after) {
				rest = rest[1:]
			}
			if names, _ := b.pages(t, guestwire.List{Path: "tree", Depth: depth, Limit: 1000, After: after}); !slices.Equal(names, rest) {
				t.Errorf("depth %d after %s: %q, want %q", depth, after, names, rest)
			}
		}
	}
}

func TestListSaysWhatItFinds(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put(t, "dir/f", "abc")
	must(t, os.Symlink("f\xff", b.work("dir/link")))
	must(t, os.Symlink("dir", b.work("to")))
	must(t, os.Mkdir(b.work("dir/sub"), 0o700))
	for _, path := range []string{"dir", "to", "/workspace/dir/"} {
		entries, more, err := b.List(t.Context(), guestwire.List{Path: path, Depth: 1, Limit: 10})
		if err != nil || more || len(entries) != 3 {
			t.Fatalf("%s: %v %v %v", path, entries, more, err)
		}
		for _, entry := range entries {
			stat, err := b.Stat(t.Context(), entry.Path)
			if err != nil || stat != entry {
				t.Errorf("list says %+v, stat %+v %v", entry, stat, err)
			}
		}
	}
	for _, c := range []struct {
		list guestwire.List
		want guestwire.Code
	}{
		{guestwire.List{Path: "none", Depth: 1, Limit: 1}, guestwire.FileNotFound},
		{guestwire.List{Path: "dir/f", Depth: 1, Limit: 1}, guestwire.BadDirectory},
		{guestwire.List{Path: "dir/f/x", Depth: 1, Limit: 1}, guestwire.BadDirectory},
		{guestwire.List{Path: "", Depth: 1, Limit: 1}, guestwire.BadRequest},
		{guestwire.List{Path: "dir", Depth: 0, Limit: 1}, guestwire.BadRequest},
		{guestwire.List{Path: "dir", Depth: 33, Limit: 1}, guestwire.BadRequest},
		{guestwire.List{Path: "dir", Depth: 1, Limit: 0}, guestwire.BadRequest},
		{guestwire.List{Path: "dir", Depth: 1, Limit: 1001}, guestwire.BadRequest},
		{guestwire.List{Path: "dir", Depth: 1, Limit: 1, After: "/f"}, guestwire.BadRequest},
		{guestwire.List{Path: "dir", Depth: 1, Limit: 1, After: "../f"}, guestwire.BadRequest},
		{guestwire.List{Path: "dir", Depth: 1, Limit: 1, After: "a/../.."}, guestwire.BadRequest},
		{guestwire.List{Path: "dir", Depth: 1, Limit: 1, After: "."}, guestwire.BadRequest},
		{guestwire.List{Path: "dir", Depth: 1, Limit: 1, After: strings.Repeat("a", 5000)}, guestwire.BadRequest},
	} {
		if _, _, err := b.List(t.Context(), c.list); !guestwire.Refused(err, c.want) {
			t.Errorf("%+v: %v, want %s", c.list, err, c.want)
		}
	}
	if entries, more, err := b.List(t.Context(), guestwire.List{Path: "dir/sub", Depth: 32, Limit: 1000}); err != nil || more || len(entries) != 0 {
		t.Errorf("nothing: %v %v %v", entries, more, err)
	}
}

// A page of long names ends before it is too long, and says that more follows.
func TestListPagesAreShort(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	deep := "dir/" + strings.Repeat(strings.Repeat("d", 250)+"/", 12)
	must(t, os.MkdirAll(b.work(deep), 0o755))
	for i := range 600 {
		must(t, os.WriteFile(b.work(deep+fmt.Sprintf("%03d%s", i, strings.Repeat("f", 240))), nil, 0o644))
	}
	want := truths(t, b.work("dir"), 32)
	names, pages := b.pages(t, guestwire.List{Path: "dir", Depth: 32, Limit: 1000})
	if !slices.Equal(names, want) || pages < 2 {
		t.Errorf("%d names in %d pages, want %d", len(names), pages, len(want))
	}
}

// The walk holds no more names of a directory than it may, and finds all.
func TestWalkIsBounded(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for i := range 1000 {
		must(t, os.WriteFile(filepath.Join(root, fmt.Sprint(i)), nil, 0o644))
	}
	dir, err := os.Open(root)
	must(t, err)
	defer dir.Close()
	most := 0
	var names []string
	w := &walk{most: 100, held: holdAll - 70}
	w.visit = func(f *found) (bool, error) {
		most = max(most, w.held)
		names = append(names, f.path)
		return true, nil
	}
	must(t, w.within(dir, "", "", 1))
	if want := truths(t, root, 1); !slices.Equal(names, want) || most > holdAll {
		t.Errorf("%d names, %d held", len(names), most)
	}
	some, more, err := smallest(dir, 10, func(name string) bool { return name > "5" })
	if want := []string{"50", "500", "501", "502", "503", "504", "505", "506", "507", "508"}; err != nil || !more || !slices.Equal(some, want) {
		t.Errorf("%q %v %v", some, more, err)
	}
}
