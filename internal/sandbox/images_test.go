package sandbox_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/image"
	"github.com/microvmd/microvm/internal/sandbox"
)

const accounts = "root:x:0:0:root:/root:/bin/sh\n"

// tree is a small root tree, which another word makes another one.
func tree(t *testing.T, word string) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, file := range [][2]string{{"etc/passwd", accounts}, {"word", word}} {
		header := &tar.Header{Name: file[0], Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(file[1]))}
		if err := errors.Join(w.WriteHeader(header), write(w, file[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func write(w io.Writer, text string) error { _, err := io.WriteString(w, text); return err }

// withImages is a node with a real catalogue that has one image, "mine".
func withImages(t *testing.T, limits sandbox.Limits) (*fixture, *sandbox.NodeImages) {
	t.Helper()
	f := newFixture(t, limits)
	catalogue := image.Open(filepath.Join(t.TempDir(), "images"), image.Bounds{Bytes: 1 << 20, Members: 100})
	f.Manager = managerOf(t, f.host, f.store, limits, catalogue)
	images := sandbox.NewImages(f.Manager, catalogue)
	if _, err := images.Import(t.Context(), image.Spec{ID: "mine"}, tree(t, "")); err != nil {
		t.Fatal(err)
	}
	return f, images
}

var mine = sandbox.Spec{Image: "mine"}

// TestAnImageIsUsedFromLookupToTeardown: also while a create is going on, and
// while its teardown is.
func TestAnImageIsUsedFromLookupToTeardown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, images := withImages(t, limits)
		refused := func(when string, sandboxes int) {
			t.Helper()
			_, err := images.Remove(t.Context(), "mine")
			var by *image.InUse
			if !errors.As(err, &by) || by.Sandboxes != sandboxes {
				t.Errorf("%s: %v", when, err)
			}
		}
		for _, step := range []string{"cgroup.create", "jail.prepare", "vmm.launch", "vmm.start", "agent.hello"} {
			f.host.Hang(step, true)
			created := started(func() error { _, err := f.Create(t.Context(), mine); return err })
			synctest.Wait()
			refused("during "+step, 1)
			f.host.Hang(step, false)
			if err := <-created; err == nil {
				t.Errorf("%s hung, and the sandbox runs", step)
			}
		}
		one, err := f.Create(t.Context(), mine)
		if err != nil {
			t.Fatal(err)
		}
		refused("while it runs", 1)
		f.host.Hang("jail.remove", true)
		deleted := started(func() error { _, err := f.Delete(t.Context(), one.ID); return err })
		synctest.Wait()
		refused("during its teardown", 1)
		f.host.Hang("jail.remove", false)
		if err := <-deleted; err != nil {
			t.Fatal(err)
		}
		if _, err := f.Create(t.Context(), sandbox.Spec{Image: "mine", VCPUs: 99}); err == nil {
			t.Error("created")
		}
		time.Sleep(time.Minute) // of the bubble's clock: what failed above is torn down
		if _, err := images.Remove(t.Context(), "mine"); err != nil {
			t.Error(err)
		}
		if _, err := f.Create(t.Context(), mine); !fault.Is(err, fault.ImageNotFound) {
			t.Error(err)
		}
		end(t, f)
	})
}

func running(t *testing.T, f *fixture) sandbox.Sandbox {
	t.Helper()
	page, err := f.List(t.Context(), sandbox.Query{Limit: 1, State: sandbox.Running})
	if err != nil || len(page.Data) != 1 {
		t.Fatal(page, err)
	}
	return page.Data[0]
}

// end closes the manager that withImages put in place of the fixture's.
func end(t *testing.T, f *fixture) {
	t.Helper()
	if err := f.Close(t.Context(), true); err != nil {
		t.Error(err)
	}
}

// TestTemplatesGoWithTheirImage: with one that is removed or replaced, those that
// an earlier daemon made too, and no other's. One in the making is given up.
func TestTemplatesGoWithTheirImage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, images := withImages(t, templated())
		if _, err := images.Import(t.Context(), image.Spec{ID: "other"}, tree(t, "")); err != nil {
			t.Fatal(err)
		}
		count := func() int {
			t.Helper()
			names, err := f.host.VMM().Templates(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return len(names)
		}
		boot := func(id string) {
			t.Helper()
			sb := booted(t, f, sandbox.Spec{Image: id}, sandbox.BootCold)
			if _, err := f.Delete(t.Context(), sb.ID); err != nil {
				t.Fatal(err)
			}
		}
		boot("mine")
		boot("other")
		if n := count(); n != 2 {
			t.Fatalf("%d templates", n)
		}
		if _, err := images.Import(t.Context(), image.Spec{ID: "mine", Replace: true}, tree(t, "new")); err != nil {
			t.Fatal(err)
		}
		if n := count(); n != 1 {
			t.Errorf("%d templates after a replacement", n)
		}
		boot("mine")
		end(t, f) // the next daemon does not know which template is whose
		catalogue := images.Catalogue.(*image.Catalogue)
		f.Manager = managerOf(t, f.host, f.store, templated(), catalogue)
		if err := f.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		images = sandbox.NewImages(f.Manager, catalogue)
		if _, err := images.Remove(t.Context(), "mine"); err != nil || count() != 1 {
			t.Errorf("%v, %d templates after a removal", err, count())
		}
		booted(t, f, sandbox.Spec{Image: "other"}, sandbox.BootSnapshot)

		// One in the making goes for it.
		if _, err := images.Import(t.Context(), image.Spec{ID: "mine"}, tree(t, "third")); err != nil {
			t.Fatal(err)
		}
		f.host.Hang("vmm.freeze", true)
		boot("mine")
		gone := started(func() error { _, err := images.Remove(t.Context(), "mine"); return err })
		synctest.Wait()
		if err := <-gone; err != nil || count() != 1 {
			t.Errorf("%v, %d templates", err, count())
		}
		end(t, f)
	})
}

func started(do func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	return done
}

// TestARunningSandboxKeepsItsImage: what an earlier daemon left running counts,
// and what it was made of is not replaced under it.
func TestARunningSandboxKeepsItsImage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, images := withImages(t, limits)
		if _, err := f.Create(t.Context(), mine); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		old := images.Catalogue.(*image.Catalogue)
		if err := old.Sweep(); err != nil {
			t.Fatal(err)
		}
		catalogue := image.Open(filepath.Dir(filepath.Dir(find(t, old).Path)), image.Bounds{Bytes: 1 << 20, Members: 100})
		f.Manager = managerOf(t, f.host, f.store, limits, catalogue)
		if err := f.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		images = sandbox.NewImages(f.Manager, catalogue)
		_, err := images.Remove(t.Context(), "mine")
		var by *image.InUse
		if !errors.As(err, &by) || by.Sandboxes != 1 {
			t.Error(err)
		}
		_, err = images.Import(t.Context(), image.Spec{ID: "mine", Workdir: "/srv", Replace: true}, tree(t, ""))
		if !errors.As(err, &by) { // its files are found by it
			t.Error(err)
		}
		if _, err := images.Import(t.Context(), image.Spec{ID: "mine", Replace: true}, tree(t, "new")); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if _, err := f.Delete(t.Context(), running(t, f).ID); err != nil {
			t.Error(err)
		}
		if _, err := images.Remove(t.Context(), "mine"); err != nil {
			t.Error(err)
		}
		end(t, f)
	})
}

func find(t *testing.T, c *image.Catalogue) image.Image {
	t.Helper()
	all, err := c.Images(t.Context())
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	return all[0]
}

// TestCreatesAndRemovalsAtOnce: each create runs or finds no image; the removal
// that goes through met no sandbox.
func TestCreatesAndRemovalsAtOnce(t *testing.T) {
	f, images := withImages(t, limits)
	for round := range 10 {
		if _, err := images.Import(t.Context(), image.Spec{ID: "mine"}, tree(t, "")); err != nil {
			t.Fatal(err)
		}
		var removed, missed, ran atomic.Int32
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				sb, err := f.Create(t.Context(), mine)
				switch {
				case fault.Is(err, fault.ImageNotFound):
					missed.Add(1)
				case err != nil:
					t.Error(err)
				default:
					ran.Add(1)
					if _, err := f.Delete(t.Context(), sb.ID); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for range 4 {
			all.Go(func() {
				switch _, err := images.Remove(t.Context(), "mine"); {
				case err == nil:
					removed.Add(1)
				case !fault.Is(err, fault.ImageInUse) && !fault.Is(err, fault.ImageNotFound):
					t.Error(err)
				}
			})
		}
		all.Wait()
		if removed.Load() > 1 || removed.Load() == 0 && missed.Load() > 0 || ran.Load()+missed.Load() != 4 {
			t.Errorf("round %d: removed %d times, %d creates ran, %d found none", round, removed.Load(), ran.Load(), missed.Load())
		}
	}
	end(t, f)
}
