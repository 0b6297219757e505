package files

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/microvmd/microvm/e2e/harness"
	microvm "github.com/microvmd/microvm/sdk/go"
)

// filler takes all but argv[1] bytes of the disk.
const filler = `
import os, sys
disk = os.statvfs("/workspace")
with open("/workspace/filler", "wb") as f:
    os.posix_fallocate(f.fileno(), 0, disk.f_bavail * disk.f_frsize - int(sys.argv[1]))
disk = os.statvfs("/workspace")
print(disk.f_bavail * disk.f_frsize)
`

// TestAFullDisk is an error of its own, of each way to write, and leaves no half
// file; what was there stays.
func TestAFullDisk(t *testing.T) {
	d := harness.Start(t, "full", "--scratch-mib", "64")
	b := newBox(t, d, 1)
	ctx := t.Context()
	old := []byte("what was there")
	for _, path := range []string{"kept/f", "kept/log"} {
		if _, err := b.put(ctx, path, bytes.NewReader(old)); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("free: %s", b.run(t, "root", "python3", "-c", filler, "1500000"))
	before := timeless(b.look(t, "/workspace/kept"))
	big := noise(2_500_000) // more than is free

	archive := func(big []byte) *bytes.Buffer {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for name, text := range map[string][]byte{"small": []byte("small"), "big/f": big} {
			_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg})
			_, _ = w.Write(text)
		}
		_ = w.Close() // into memory
		return &out
	}
	for what, write := range map[string]func() error{
		"over a file":       func() error { _, err := b.put(ctx, "kept/f", bytes.NewReader(big)); return err },
		"of unknown length": func() error { _, err := b.put(ctx, "kept/f", io.MultiReader(bytes.NewReader(big))); return err },
		"of a new one":      func() error { _, err := b.put(ctx, "kept/new/parent/g", bytes.NewReader(big)); return err },
		"in JSON": func() error {
			_, err := b.post(ctx, `{"path": "kept/new/h", "content": "`+base64.StdEncoding.EncodeToString(big)+`"}`)
			return err
		},
		"behind a file":           func() error { _, err := b.add(ctx, "kept/log", int64(len(old)), bytes.NewReader(big)); return err },
		"behind one that is none": func() error { _, err := b.add(ctx, "kept/none", 0, bytes.NewReader(big)); return err },
		"of a batch": func() error {
			_, err := b.batch(ctx, microvm.FileWrite{Path: "kept/f", Content: []byte("new")}, microvm.FileWrite{Path: "kept/a/b", Content: []byte("b")}, microvm.FileWrite{Path: "kept/c", Content: big})
			return err
		},
		"of a batch of which each would fit": func() error {
			part := big[:1_000_000]
			_, err := b.batch(ctx, microvm.FileWrite{Path: "kept/f", Content: part}, microvm.FileWrite{Path: "kept/a/b", Content: part}, microvm.FileWrite{Path: "kept/log", Content: []byte("new")})
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			refused(t, "a write", write(), microvm.ErrorCodeGuestDiskFull, "")
			if after := timeless(b.look(t, "/workspace/kept")); after != before {
				t.Errorf("it left:\n%s", differ(before, after))
			}
		})
	}
	// Of an archive what came before stays, and each file is whole or not there.
	for try := range 2 {
		dir := fmt.Sprintf("unpacked%d", try)
		_, err := b.unpack(ctx, dir, archive(big), plain, user)
		refused(t, "an archive", err, microvm.ErrorCodeGuestDiskFull, "")
		if left := b.run(t, "root", "find", "/workspace/"+dir, "-type", "f", "-not", "-size", "5c"); left != "" {
			t.Errorf("half files: %s", left)
		}
	}
	b.noHalves(t)
	// What fits goes in, and with room again all does.
	if _, err := b.put(ctx, "kept/fits", strings.NewReader("fits")); err != nil {
		t.Error(err)
	}
	if _, err := b.remove(ctx, "filler", false); err != nil {
		t.Fatal(err)
	}
	if _, err := b.put(ctx, "kept/f", bytes.NewReader(big)); err != nil {
		t.Error(err)
	}
	b.holds(t, "kept/f", big)
	if done, err := b.unpack(ctx, "unpacked", archive(big), plain, user); err != nil || done.Entries != 2 {
		t.Errorf("%+v %v", done, err)
	}
}
