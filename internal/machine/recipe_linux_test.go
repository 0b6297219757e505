package machine

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func TestRecipe(t *testing.T) {
	cache := t.TempDir()
	var builds atomic.Int32
	r := recipe{name: "thing", parts: [][]byte{[]byte("1")}, build: func(_ context.Context, dir string, _ io.Writer) error {
		builds.Add(1)
		return os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o600)
	}}
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			path, err := r.ensure(t.Context(), cache, &progress{w: io.Discard})
			if err != nil || !exists(filepath.Join(path, "f")) {
				t.Errorf("%s, %v", path, err)
			}
		})
	}
	wait.Wait()
	if builds.Load() != 1 {
		t.Errorf("built %d times", builds.Load())
	}
	other := recipe{name: "thing", parts: [][]byte{[]byte("2")}}
	if r.key() == other.key() || (recipe{name: "t", parts: [][]byte{[]byte("a"), []byte("b")}}).key() == (recipe{name: "t", parts: [][]byte{[]byte("ab")}}).key() {
		t.Error("other parts, same key")
	}
}

func TestRecipeThatFails(t *testing.T) {
	cache := t.TempDir()
	cause := errors.New("no network")
	r := recipe{name: "thing", build: func(_ context.Context, dir string, log io.Writer) error {
		io.WriteString(log, "E: unable to fetch\n")
		return errors.Join(os.WriteFile(filepath.Join(dir, "half"), nil, 0o600), cause)
	}}
	_, err := r.ensure(t.Context(), cache, &progress{w: io.Discard})
	if !errors.Is(err, cause) || !strings.Contains(err.Error(), "unable to fetch") {
		t.Errorf("error: %v", err)
	}
	if exists(filepath.Join(cache, r.key())) || exists(filepath.Join(cache, r.key()+".partial")) {
		t.Error("a failed build left something")
	}
}

// Every embedded text that code reads by name is there.
func TestHostRootIsWhole(t *testing.T) {
	for _, name := range []string{"init", "modules", "packages", "masked", "wanted"} {
		if hostText(name) == "" {
			t.Errorf("%s is empty", name)
		}
	}
	for _, unit := range strings.Fields(hostText("wanted")) {
		if _, err := hostroot.ReadFile("hostroot/files/etc/systemd/system/" + unit); err != nil {
			t.Error(err)
		}
	}
	if hostRoot("/a/base-1").key() == hostRoot("/a/base-2").key() || hostBase(nil).key() == hostBase([]string{"docker.io"}).key() {
		t.Error("other packages, same key")
	}
}
