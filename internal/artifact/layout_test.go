package artifact

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func cachedImage(t *testing.T) Artifact {
	t.Helper()
	store := open(t, Options{Recipes: imageRecipe(goodImage)})
	got, err := store.Ensure(t.Context(), "image-python")
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// stateDir is a directory below none that others may write: the test's own
// temporary directory, which lies in a sticky one.
func stateDir(t *testing.T) string { return filepath.Join(t.TempDir(), "state", "microvm") }

func TestInstallPlacesTheLayout(t *testing.T) {
	image, dir := cachedImage(t), stateDir(t)
	kernel := Artifact{Name: "guest-kernel", Kind: KindKernel, Dir: t.TempDir()}
	for name, text := range map[string]string{"vmlinux": "kernel", "kernel.json": "{}", recordFile: "{}"} {
		if err := os.WriteFile(filepath.Join(kernel.Dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if name != recordFile {
			kernel.Files = append(kernel.Files, File{Name: name, SHA256: sum([]byte(text)), Size: int64(len(text))})
		}
	}
	if err := install(t.Context(), dir, []Artifact{image, kernel}, os.Getuid()); err != nil {
		t.Fatal(err)
	}
	modes := map[string]fs.FileMode{
		"kernel/vmlinux": 0o444, "kernel/kernel.json": 0o444, "images/python/rootfs.ext4": 0o444,
		"images/python/image.json": 0o444, "artifacts/image-python.json": 0o444, "artifacts/guest-kernel.json": 0o444,
	}
	for name, mode := range modes {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if rest := leftovers(t, dir); len(rest) != len(modes)+1 { // and the lock
		t.Errorf("installed %v", rest)
	}
	if mode := StatePaths(Artifact{Kind: KindFirecracker, Files: []File{{Name: "jailer"}}})[0]; mode.Dst != "bin/jailer" || mode.Mode != 0o755 {
		t.Errorf("jailer goes to %+v", mode)
	}

	// A second time leaves what is right alone and mends what is not.
	target := filepath.Join(dir, "images/python/rootfs.ext4")
	before, err := os.Stat(target)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, "kernel/vmlinux")), os.WriteFile(filepath.Join(dir, "kernel/vmlinux"), []byte("evil!!"), 0o444)); err != nil {
		t.Fatal(err)
	}
	if err := install(t.Context(), dir, []Artifact{image, kernel}, os.Getuid()); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(target); err != nil || !os.SameFile(before, after) {
		t.Errorf("the right file was replaced (%v)", err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "kernel/vmlinux")); err != nil || string(text) != "kernel" {
		t.Errorf("the wrong file holds %q, %v", text, err)
	}
}

func TestInstallRefuses(t *testing.T) {
	image := cachedImage(t)
	t.Run("a cache damaged since", func(t *testing.T) {
		dir, bad := stateDir(t), image
		bad.Files = append([]File(nil), image.Files...)
		bad.Files[0].SHA256 = strings.Repeat("0", 64)
		err := install(t.Context(), dir, []Artifact{bad}, os.Getuid())
		var wrong *ChecksumError
		if !errors.As(err, &wrong) {
			t.Fatalf("error is %v", err)
		}
		if rest := leftovers(t, dir); len(rest) != 1 {
			t.Errorf("left behind: %v", rest)
		}
	})
	t.Run("a parent that others may write", func(t *testing.T) {
		open := filepath.Join(t.TempDir(), "open")
		if err := errors.Join(os.Mkdir(open, 0o755), os.Chmod(open, 0o777)); err != nil {
			t.Fatal(err)
		}
		if err := install(t.Context(), filepath.Join(open, "state"), []Artifact{image}, os.Getuid()); err == nil || !strings.Contains(err.Error(), "writable by others") {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("a link", func(t *testing.T) {
		dir := stateDir(t)
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Symlink(t.TempDir(), filepath.Join(dir, "images"))); err != nil {
			t.Fatal(err)
		}
		if err := install(t.Context(), dir, []Artifact{image}, os.Getuid()); err == nil || !strings.Contains(err.Error(), "links are refused") {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("a relative path", func(t *testing.T) {
		if err := install(t.Context(), "state", []Artifact{image}, os.Getuid()); err == nil {
			t.Error("accepted")
		}
	})
}

// TestRecordCannotWhitewash: for a version that the manifest pins, the pins
// count and not what the state directory says.
func TestRecordCannotWhitewash(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, recordsFolder), 0o755); err != nil {
		t.Fatal(err)
	}
	forged := strings.Repeat("ee", 32)
	record := `{"name":"firecracker","kind":"firecracker","version":"1.12.1","arch":"x86_64","supported":true,"files":[` +
		`{"name":"firecracker","sha256":"` + forged + `"},{"name":"jailer","sha256":"` + forged + `"}]}`
	if err := os.WriteFile(filepath.Join(dir, recordsFolder, "firecracker.json"), []byte(record), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := Installed(dir)
	if err != nil || len(got) != 1 {
		t.Fatalf("got %v, %v", got, err)
	}
	if !got[0].Pinned || got[0].Supported || got[0].Files[0].SHA256 == forged || got[0].Paths[1] != "bin/jailer" {
		t.Errorf("got %+v", got[0])
	}
	for _, bad := range []string{`{"name":"x","files":[{"name":"../../etc/shadow","sha256":"` + forged + `"}]}`, `{`, `{"name":"x"}`} {
		if err := os.WriteFile(filepath.Join(dir, recordsFolder, "firecracker.json"), []byte(bad), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Installed(dir); err == nil {
			t.Errorf("%s accepted", bad)
		}
	}
}

func TestPrinterSpeaksOfWhatTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		p := NewPrinter(&out)
		p.Progress(Event{Artifact: "quick", State: Working, Text: "checking the cache"})
		p.Progress(Event{Artifact: "slow", State: Working, Text: "compiling a"})
		time.Sleep(1500 * time.Millisecond) // the bubble's clock
		p.Progress(Event{Artifact: "quick", State: Done, Text: "1 from cache", Took: 1500 * time.Millisecond})
		time.Sleep(time.Second)
		for range 100 { // a flood of lines is one line
			p.Progress(Event{Artifact: "slow", State: Working, Text: "compiling b"})
		}
		time.Sleep(13 * time.Second)
		p.Progress(Event{Artifact: "slow", State: Failed, Text: "no compiler", Took: 15500 * time.Millisecond})
		p.Close()
		want := "quick          ready: 1 from cache (1.5 s)\n" +
			"slow             2 s: compiling a\n" +
			"slow             4 s: compiling b\n" +
			"slow            14 s: compiling b\n" +
			"slow           FAILED: no compiler (15.5 s)\n"
		if out.String() != want {
			t.Errorf("printed\n%s\nwant\n%s", out.String(), want)
		}
	})
}
