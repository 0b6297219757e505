package firecracker

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCopySparseKeepsHoles(t *testing.T) {
	dir := t.TempDir()
	source, err := os.Create(filepath.Join(dir, "source"))
	must(t, err)
	const size = 1 << 30
	extents := map[int64][]byte{0: bytes.Repeat([]byte("a"), 8192), 100 << 20: []byte("middle"), size - 5: []byte("end.\n")}
	must(t, source.Truncate(size))
	for at, data := range extents {
		_, err := source.WriteAt(data, at)
		must(t, err)
	}
	must(t, source.Close())
	for name, copied := range map[string]func(string) error{
		"whole": func(name string) error {
			return copySparse(source.Name(), int(openTest(t, dir).Fd()), name, os.Getuid())
		},
		"extents": func(name string) error { // as where there are no reflinks
			from, err := os.Open(source.Name())
			must(t, err)
			to, err := os.Create(filepath.Join(dir, name))
			must(t, err)
			defer func() { _ = from.Close(); _ = to.Close() }()
			return copyExtents(from, to)
		},
	} {
		must(t, copied(name))
		f, err := os.Open(filepath.Join(dir, name))
		must(t, err)
		var stat unix.Stat_t
		must(t, unix.Fstat(int(f.Fd()), &stat))
		if stat.Size != size || stat.Blocks*512 > 1<<20 {
			t.Errorf("%s: size %d, %d bytes allocated", name, stat.Size, stat.Blocks*512)
		}
		for at, want := range extents {
			got := make([]byte, len(want))
			if _, err := f.ReadAt(got, at); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: at %d %.10q %v", name, at, got, err)
			}
		}
		must(t, f.Close())
	}
	if err := copySparse(source.Name(), int(openTest(t, dir).Fd()), "whole", os.Getuid()); err == nil {
		t.Error("a copy replaced a file")
	}
	must(t, os.Symlink("/nonexistent/x", filepath.Join(dir, "link")))
	if err := copySparse(source.Name(), int(openTest(t, dir).Fd()), "link", os.Getuid()); err == nil {
		t.Error("a copy went through a link")
	}
}
