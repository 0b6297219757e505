package machine

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOpenNamesEveryWrongField(t *testing.T) {
	_, err := Open(Config{Name: "Bad_Name", Dir: "relative", Cache: "/c", MemoryMiB: 1, Cores: 1000, DiskGiB: -1, Packages: []string{"--option"}, Keeper: []string{"k"}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{`name is "Bad_Name"`, "machine directory is", "memory is 1 MiB: want 2048 to", "cores is 1000", "disk is -1 GiB", `package is "--option"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{"default": true, "a": true, "a-1": true, "": false, "-a": false, "a-": false, "..": false, "a/b": false, "A": false, strings.Repeat("a", 32): true, strings.Repeat("a", 33): false} {
		if namePattern.MatchString(name) != ok {
			t.Errorf("name %q: want %v", name, ok)
		}
	}
}

func TestSettle(t *testing.T) {
	dir := t.TempDir()
	open := func(c Config) *Machine {
		t.Helper()
		c.Dir, c.Cache, c.Keeper = dir, dir, []string{"k"}
		m, err := Open(c)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	m := open(Config{MemoryMiB: 2048, Cores: 3, DiskGiB: 8})
	if err := os.MkdirAll(m.Directory(), 0o700); err != nil {
		t.Fatal(err)
	}
	made, err := m.settle()
	if err != nil || made.MemoryMiB != 2048 || made.Cores != 3 || made.DiskGiB != 8 {
		t.Fatalf("%+v, %v", made, err)
	}
	if err := writeJSON(m.path(settingsFile), made); err != nil {
		t.Fatal(err)
	}
	if again, err := open(Config{}).settle(); err != nil || again.Cores != 3 || again.DiskGiB != 8 {
		t.Errorf("without flags: %+v, %v", again, err)
	}
	if more, err := open(Config{Cores: 4}).settle(); err != nil || more.Cores != 4 || more.MemoryMiB != 2048 {
		t.Errorf("more cores: %+v, %v", more, err)
	}
	if _, err := open(Config{DiskGiB: 9}).settle(); err == nil {
		t.Error("another disk size was taken")
	}
	me, err := identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := writeJSON(m.path(runFile), run{Keeper: me, QEMU: me}); err != nil {
		t.Fatal(err)
	}
	if _, err := open(Config{Cores: 4}).settle(); !errors.Is(err, ErrRunning) {
		t.Errorf("change while running: %v", err)
	}
}

func TestReadEndpoint(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadEndpoint(dir, "../x"); err == nil {
		t.Error("a name that is a path was taken")
	}
	if _, err := ReadEndpoint(dir, "default"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "default"), 0o700); err != nil {
		t.Fatal(err)
	}
	want := Endpoint{URL: "http://127.0.0.1:1", APIKey: "mvk_test"}
	path := filepath.Join(dir, "default", endpointFile)
	if err := writeJSON(path, want); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadEndpoint(dir, "default"); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}
