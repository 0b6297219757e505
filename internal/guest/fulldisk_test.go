package guest

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// A disk that is really full takes a part of the last write: that goes too, and
// what was there stays, by every way to write.
func TestAFullDisk(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	must(t, unix.Mount("tmpfs", b.work(""), "tmpfs", 0, "size=300k"))
	t.Cleanup(func() { _ = unix.Unmount(b.work(""), unix.MNT_DETACH) })
	b.put(t, "old", "old")
	large := bytes.Repeat([]byte("large"), 200_000)
	full := func(call string, err error) {
		t.Helper()
		if !guestwire.Refused(err, guestwire.DiskFull) {
			t.Errorf("%s: %v", call, err)
		}
		b.holds(t, "old", "old")
		if names := truths(t, b.work(""), 9); len(names) != 1 {
			t.Errorf("%s: left behind: %q", call, names)
		}
		var disk unix.Statfs_t
		must(t, unix.Statfs(b.work(""), &disk))
		if used := disk.Blocks - disk.Bfree; used != 1 {
			t.Errorf("%s: %d blocks are used", call, used)
		}
	}
	_, err := b.WriteFile(t.Context(), "old", 0o644, bytes.NewReader(large))
	full("write", err)
	_, err = b.WriteFile(t.Context(), "new/dir/f", 0o644, bytes.NewReader(large))
	full("write into a new directory", err)
	_, err = b.AppendFile(t.Context(), "old", 3, 0o644, bytes.NewReader(large))
	full("append", err)
	_, err = b.AppendFile(t.Context(), "new/f", 0, 0o644, bytes.NewReader(large))
	full("append to nothing", err)
	_, err = b.WriteFiles(t.Context(), append(newFiles("old", "a/b", "c"), guestwire.NewFile{Path: "d", Content: large}))
	full("batch", err)
	data := makeTar(t, plain("old", string(large)))
	_, err = b.unpack(t, ".", data, false, false)
	full("unpack", err)
	_, err = b.unpack(t, ".", squeeze(t, data), true, false)
	full("unpack compressed", err)
}
