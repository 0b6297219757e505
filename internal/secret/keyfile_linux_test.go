package secret

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func TestLoadKeyMakesAPrivateFileAndKeepsIt(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	dir := t.TempDir()
	path := filepath.Join(dir, "secret.key")
	first, err := LoadKey(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != 0o600 || info.Size() != KeySize {
		t.Fatalf("%v %v", info, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("beside the key: %v %v", entries, err)
	}
	sealed, err := first.Seal(Env{"A": "b"}, "sb_1")
	if err != nil {
		t.Fatal(err)
	}
	second, err := LoadKey(path)
	if err != nil {
		t.Fatal(err)
	}
	if env, err := second.Open(sealed, "sb_1"); err != nil || env["A"] != "b" {
		t.Errorf("the key changed: %v", err)
	}
}

// TestLoadKeyRace: of many that find no key one makes it, and all have that one.
func TestLoadKeyRace(t *testing.T) {
	for range 20 {
		path := filepath.Join(t.TempDir(), "secret.key")
		sealed := make([]string, 8)
		keys := make([]*Key, len(sealed))
		start := make(chan struct{})
		var all sync.WaitGroup
		for i := range sealed {
			all.Go(func() {
				<-start
				var err error
				if keys[i], err = LoadKey(path); err == nil {
					sealed[i], err = keys[i].Seal(Env{"A": "b"}, "sb_1")
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		close(start)
		all.Wait()
		for i := range sealed {
			if t.Failed() {
				return
			}
			if _, err := keys[i].Open(sealed[(i+1)%len(sealed)], "sb_1"); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestMakeKeySyncs: the key is on the disk before the file has its name, and the
// name before anything is sealed.
func TestMakeKeySyncs(t *testing.T) {
	broken := errors.New("injected")
	for failing, want := range map[string]struct {
		trace []string
		left  bool
	}{
		"":       {[]string{"file unnamed", "folder named"}, true},
		"file":   {[]string{"file unnamed"}, false},
		"folder": {[]string{"file unnamed", "folder named"}, true},
	} {
		path := filepath.Join(t.TempDir(), "secret.key")
		var trace []string
		err := makeKey(path, func(f *os.File) error {
			info, err := f.Stat()
			if err != nil {
				return err
			}
			what, name := "file", " named"
			if info.IsDir() {
				what = "folder"
			} else if info.Size() != KeySize {
				t.Errorf("%d bytes were synced", info.Size())
			}
			if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
				name = " unnamed"
			}
			trace = append(trace, what+name)
			if what == failing {
				return broken
			}
			return f.Sync()
		})
		if (err == nil) != (failing == "") || err != nil && !errors.Is(err, broken) {
			t.Errorf("sync of %q fails: %v", failing, err)
		}
		if !slices.Equal(trace, want.trace) {
			t.Errorf("sync of %q fails: synced %v", failing, trace)
		}
		left, err := os.ReadDir(filepath.Dir(path))
		if err != nil || (len(left) == 1) != want.left || len(left) > 1 {
			t.Errorf("sync of %q fails: left %v %v", failing, left, err)
		}
	}
}

func TestLoadKeyRefuses(t *testing.T) {
	whole := []byte(strings.Repeat("k", KeySize))
	write := func(data []byte, mode fs.FileMode) func(string) error {
		return func(path string) error {
			return errors.Join(os.WriteFile(path, data, 0o600), os.Chmod(path, mode))
		}
	}
	for name, c := range map[string]struct {
		put  func(path string) error
		says string
	}{
		"group reads":  {write(whole, 0o640), "chmod 600"},
		"world reads":  {write(whole, 0o604), "mode 0604"},
		"world writes": {write(whole, 0o602), "chmod 600"},
		"too short":    {write(whole[1:], 0o600), "must hold 32 bytes and has 31"},
		"too long":     {write(append(whole, 'k'), 0o600), "must hold 32 bytes and has more"},
		"empty":        {write(nil, 0o600), "must hold 32 bytes and has 0"},
		"link": {func(path string) error {
			return errors.Join(os.WriteFile(path+".real", whole, 0o600), os.Symlink(path+".real", path))
		}, "symbolic link"},
		"link to nothing": {func(path string) error { return os.Symlink(path+".none", path) }, "symbolic link"},
		"folder":          {func(path string) error { return os.Mkdir(path, 0o700) }, "no regular file"},
		"pipe":            {func(path string) error { return syscall.Mkfifo(path, 0o600) }, "no regular file"},
	} {
		path := filepath.Join(t.TempDir(), "secret.key")
		if err := c.put(path); err != nil {
			t.Fatal(err)
		}
		before, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		key, err := LoadKey(path)
		if key != nil || err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "kkk") {
			t.Errorf("%s: %v", name, err)
		}
		if after, err := os.Lstat(path); err != nil || after.Mode() != before.Mode() || after.Size() != before.Size() {
			t.Errorf("%s: what was refused was changed: %v", name, err)
		}
	}
	if _, err := LoadKey(filepath.Join(t.TempDir(), "none", "secret.key")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without its folder: %v", err)
	}
}

func TestAKeyOfAnotherUserIsRefused(t *testing.T) {
	for _, c := range []struct{ owner, self int }{{1000, 0}, {0, 1000}, {-1, 0}} {
		if err := private(0o600, c.owner, c.self); err == nil || !strings.Contains(err.Error(), "chown") {
			t.Errorf("of %d for %d: %v", c.owner, c.self, err)
		}
	}
	if err := private(0o400, 0, 0); err != nil {
		t.Error(err)
	}
	path := filepath.Join(t.TempDir(), "secret.key")
	if _, err := LoadKey(path); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 { // only root can give a file away
		return
	}
	if err := os.Chown(path, 1000, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKey(path); err == nil || !strings.Contains(err.Error(), "belongs to user 1000 and the daemon is user 0") {
		t.Errorf("of user 1000: %v", err)
	}
}
