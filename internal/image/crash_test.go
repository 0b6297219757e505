package image

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// The tests below start this program again, which kills itself with SIGKILL just
// before one step of an import or a removal. Between two steps nothing is half
// done, so that is every moment that leaves something else behind; a write that
// is cut in the middle is what the step after it has not synced.
const crashEnv = "MICROVM_TEST_IMAGE_CRASH" // directory NUL verb NUL step

var errInjected = errors.New("injected")

// verbs are what is struck. Each begins with an image "mine" and one of a recipe.
var verbs = map[string]func(t *testing.T, c *Catalogue) error{
	"import": func(t *testing.T, c *Catalogue) error {
		_, err := c.Import(t.Context(), Spec{ID: "next"}, bytes.NewReader(archive(t, small()...)))
		return err
	},
	"replace": func(t *testing.T, c *Catalogue) error {
		_, err := c.Import(t.Context(), Spec{ID: "mine", Replace: true}, bytes.NewReader(archive(t, small(file("more", "x"))...)))
		return err
	},
	"relabel": func(t *testing.T, c *Catalogue) error {
		_, err := c.Import(t.Context(), Spec{ID: "mine", Language: "c", Replace: true}, bytes.NewReader(archive(t, small()...)))
		return err
	},
	"remove": func(t *testing.T, c *Catalogue) error {
		_, err := c.Remove(t.Context(), "mine")
		return err
	},
}

// steps are the golden traces of the verbs.
var steps = map[string][]string{
	"import":  {"make draft", "write file system", "sync file system", "write metadata", "sync draft", "publish"},
	"replace": {"make draft", "write file system", "sync file system", "write metadata", "sync draft", "place file", "publish", "remove what was replaced"},
	"relabel": {"make draft", "write file system", "sync file system", "write metadata", "sync draft", "place file", "publish"},
	"remove":  {"take away", "delete"},
}

func TestStepsOfImports(t *testing.T) {
	for verb, want := range steps {
		c := prepared(t)
		var got []string
		c.before = func(step string) error { got = append(got, step); return nil }
		if err := verbs[verb](t, c); err != nil {
			t.Errorf("%s: %v", verb, err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s takes the steps %q, want %q", verb, got, want)
		}
	}
}

func prepared(t *testing.T) *Catalogue {
	t.Helper()
	c := newImports(t)
	add(t, c, valid("python"))
	bring(t, c, Spec{ID: "mine"}, small()...)
	return c
}

// again is a catalogue of the same folder, as the next start of the daemon has it.
func again(c *Catalogue) *Catalogue {
	next := Open(c.dir, c.bounds)
	next.owner = c.owner
	return next
}

// TestEachStepThatFailsLeavesNothing: an error is told, what was there is there,
// and no draft is.
func TestEachStepThatFailsLeavesNothing(t *testing.T) {
	for verb, all := range steps {
		for _, step := range all {
			c := prepared(t)
			before := list(t, c)
			c.before = func(now string) error {
				if now == step {
					return errInjected
				}
				return nil
			}
			if err := verbs[verb](t, c); !errors.Is(err, errInjected) || !strings.Contains(err.Error(), step) {
				t.Errorf("%s, %s: %v", verb, step, err)
			}
			if after := list(t, c); !slices.Equal(after, before) && step != "delete" && step != "remove what was replaced" {
				t.Errorf("%s, %s: left at once %q\nwas %q", verb, step, after, before)
			}
			c = again(c)
			if err := c.Sweep(); err != nil {
				t.Errorf("%s, %s: %v", verb, step, err)
			}
			if after := list(t, c); !slices.Equal(after, before) && step != "delete" && step != "remove what was replaced" {
				t.Errorf("%s, %s: left %q\nwas %q", verb, step, after, before)
			}
		}
	}
}

// list is all that lies in the folder.
func list(t *testing.T, c *Catalogue) (all []string) {
	t.Helper()
	err := filepath.WalkDir(c.dir, func(path string, _ fs.DirEntry, err error) error {
		all = append(all, strings.TrimPrefix(path, c.dir))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestKilledAtEachStep(t *testing.T) {
	if task := os.Getenv(crashEnv); task != "" {
		part := strings.Split(task, "\n")
		c := Open(part[0], Bounds{Bytes: 1 << 20, Members: 100})
		c.owner = os.Getuid()
		c.before = func(step string) error {
			if step == part[2] {
				return syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			return nil
		}
		t.Fatal("it lives on: ", verbs[part[1]](t, c))
	}
	for verb, all := range steps {
		for _, step := range all {
			t.Run(verb+", before "+step, func(t *testing.T) {
				c := prepared(t)
				was, err := c.Images(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				child := exec.Command(os.Args[0], "-test.run=^TestKilledAtEachStep$")
				child.Env = append(os.Environ(), crashEnv+"="+strings.Join([]string{c.dir, verb, step}, "\n"))
				out, err := child.CombinedOutput()
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
					t.Fatalf("%v: %s", err, out)
				}
				c = again(c)
				whole(t, c)
				if now, err := c.Images(t.Context()); err != nil || !reflect.DeepEqual(now, was) && step != "delete" && step != "remove what was replaced" {
					t.Errorf("images are %+v, %v", now, err)
				}
				if err := c.Sweep(); err != nil {
					t.Fatal(err)
				}
				whole(t, c)
				for _, path := range list(t, c) {
					if strings.Contains(path, "/.") || strings.Count(path, "/"+rootPrefix) > 0 && !named(t, c, path) {
						t.Errorf("left %s", path)
					}
				}
				if verb != "remove" { // and the same again goes well
					if err := verbs[verb](t, c); err != nil {
						t.Error(err)
					}
					whole(t, c)
				}
			})
		}
	}
}

// whole wants every image of the folder to be one.
func whole(t *testing.T, c *Catalogue) {
	t.Helper()
	if broken, err := c.Broken(t.Context()); err != nil || len(broken) > 0 {
		t.Errorf("broken: %v, %v", broken, err)
	}
	images, err := c.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, img := range images {
		if img.Source == Imported && !c.whole(img) {
			t.Errorf("%s is not what it says", img)
		}
	}
}

// named says whether an image is made of a file.
func named(t *testing.T, c *Catalogue, path string) bool {
	t.Helper()
	images, err := c.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(images, func(i Image) bool { return i.Path == c.dir+path })
}

// TestSetupTakesANameOver: what was imported under it goes at the next start.
func TestSetupTakesANameOver(t *testing.T) {
	c := prepared(t)
	old, err := c.Image(t.Context(), "mine")
	if err != nil {
		t.Fatal(err)
	}
	add(t, c, valid("mine"))
	if err := c.Sweep(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old.Path); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the imported file is there:", err)
	}
	whole(t, c)
}

// TestTheNextImportSweeps: it need not wait for a start.
func TestTheNextImportSweeps(t *testing.T) {
	c := prepared(t)
	put(t, filepath.Join(c.dir, draftPrefix+"1", "rootfs"), "half")
	put(t, filepath.Join(c.dir, removedPrefix+"2", "mine", "image.json"), "{}")
	bring(t, c, Spec{ID: "next"}, small()...)
	for _, path := range list(t, c) {
		if strings.Contains(path, "/.") {
			t.Errorf("left %s", path)
		}
	}
}
