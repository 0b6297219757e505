package image

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/microvmd/microvm/internal/fault"
)

func TestAnImageThatIsUsedStays(t *testing.T) {
	c := newImports(t)
	bring(t, c, Spec{ID: "mine"}, small()...)
	use := func(by By) *Use {
		u, err := c.Use(t.Context(), "mine", by)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	refused := func(want InUse, words string) {
		t.Helper()
		_, err := c.Remove(t.Context(), "mine")
		f := wantCode(t, err, fault.ImageInUse)
		var by *InUse
		if !errors.As(err, &by) || *by != want || !bytes.Contains([]byte(f.Message), []byte(words)) {
			t.Errorf("%v by %+v, want %+v", err, by, want)
		}
	}
	one, two, maker, held := use(BySandbox), use(BySandbox), use(ByTemplate), c.Hold("mine")
	refused(InUse{3, 1}, "3 sandboxes use")
	one.Release()
	one.Release() // only the first counts
	two.Release()
	refused(InUse{1, 1}, "1 sandbox uses")
	held.Release()
	refused(InUse{0, 1}, "the making of a template uses")
	maker.Release()
	removed, err := c.Remove(t.Context(), "mine")
	if err != nil || removed.ID != "mine" {
		t.Fatal(removed, err)
	}
	leftNothing(t, c)
	_, err = c.Use(t.Context(), "mine", BySandbox)
	wantCode(t, err, fault.ImageNotFound)
	_, err = c.Remove(t.Context(), "mine")
	wantCode(t, err, fault.ImageNotFound)
	_, err = c.Remove(t.Context(), "../x")
	wantCode(t, err, fault.ImageNotFound)
	if len(c.uses)+len(c.paths)+len(c.stale) > 0 {
		t.Errorf("counts %v %v %v", c.uses, c.paths, c.stale)
	}
	(&Use{Image: Image{ID: "fake"}}).Release() // as fakes have it
}

func TestOnlyImportsAreRemoved(t *testing.T) {
	c := newImports(t)
	add(t, c, valid("python"))
	_, err := c.Remove(t.Context(), "python")
	wantCode(t, err, fault.Forbidden)
	put(t, c.dir+"/broken/image.json", "{")
	_, err = c.Remove(t.Context(), "broken")
	wantCode(t, err, fault.Forbidden)
	if err := c.Sweep(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Image(t.Context(), "python"); err != nil {
		t.Error(err)
	}
	// One that lost its file is nobody's use, and goes.
	first := bring(t, c, Spec{ID: "mine"}, small()...)
	if err := os.Remove(first.Path); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Remove(t.Context(), "mine"); err != nil {
		t.Error(err)
	}
}

// TestAReplacementLeavesUsersAlone: who holds an image keeps its file under its
// path, and the last of them takes it away.
func TestAReplacementLeavesUsersAlone(t *testing.T) {
	c := newImports(t)
	first := bring(t, c, Spec{ID: "mine"}, small()...)
	before := must(t, first.Path)
	one, err := c.Use(t.Context(), "mine", BySandbox)
	if err != nil {
		t.Fatal(err)
	}
	two, err := c.Use(t.Context(), "mine", ByTemplate)
	if err != nil {
		t.Fatal(err)
	}
	second := bring(t, c, Spec{ID: "mine", Replace: true}, small(file("more", "x"))...)
	if second.Replaced == nil || second.Replaced.Digest != first.Digest || second.Path == first.Path {
		t.Fatalf("%+v", second)
	}
	three, err := c.Use(t.Context(), "mine", BySandbox)
	if err != nil || three.Digest != second.Digest {
		t.Fatal(three, err)
	}
	one.Release()
	if must(t, two.Path) != before {
		t.Error("it changed")
	}
	two.Release()
	if _, err := os.Stat(first.Path); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the last one did not take it away:", err)
	}
	// Back to what it was while the second is held, and again.
	bring(t, c, Spec{ID: "mine", Replace: true}, small()...)
	third := bring(t, c, Spec{ID: "mine", Replace: true}, small(file("more", "x"))...)
	three.Release()
	if third.Path != second.Path || must(t, third.Path) == "" || len(c.stale) > 0 {
		t.Errorf("%+v, stale %v", third, c.stale)
	}
	whole(t, c)
}

// TestRemovalAndUseNeverMeet: many uses and removals at once, again and again.
// Whoever holds the image finds its file, and one removal of all takes it.
func TestRemovalAndUseNeverMeet(t *testing.T) {
	c := newImports(t)
	tree := archive(t, small()...)
	for range 25 {
		if _, err := c.Import(t.Context(), Spec{ID: "mine"}, bytes.NewReader(tree)); err != nil {
			t.Fatal(err)
		}
		var removed atomic.Int32
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 10 {
					u, err := c.Use(t.Context(), "mine", BySandbox)
					if fault.Is(err, fault.ImageNotFound) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					if _, err := os.Stat(u.Path); err != nil {
						t.Error("held, and gone:", err)
					}
					u.Release()
				}
			})
		}
		for range 3 {
			all.Go(func() {
				err := error(&InUse{})
				for busy := new(InUse); errors.As(err, &busy); {
					if _, err = c.Remove(t.Context(), "mine"); err == nil {
						removed.Add(1)
					}
				}
				if err != nil && !fault.Is(err, fault.ImageNotFound) {
					t.Error(err)
				}
			})
		}
		if all.Wait(); removed.Load() != 1 || len(c.uses)+len(c.paths) > 0 {
			t.Fatalf("removed %d times, counts %v %v", removed.Load(), c.uses, c.paths)
		}
	}
}
