package sqlstore

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// childEnv tells a test that it runs as its own child, and what for.
const childEnv = "MICROVM_SQLSTORE_CHILD"

// again is this test once more, in a process of its own that ends with this one.
func again(t *testing.T, purpose string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^"+regexp.QuoteMeta(t.Name())+"$", "-test.count=1")
	cmd.Env = append(os.Environ(), childEnv+"="+purpose)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	return cmd
}

// onSmallDisk runs a test in a mount namespace of its own, on a disk of so many
// KiB that goes away with it whatever happens.
func onSmallDisk(t *testing.T, kib string, test func(t *testing.T, disk string)) {
	if disk := os.Getenv(childEnv); disk != "" {
		if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size="+kib+"k"); err != nil {
			t.Fatalf("mount a small disk: %v", err)
		}
		test(t, disk)
		return
	}
	disk, err := os.MkdirTemp("", "microvm-disk-") // t.TempDir lies in a folder that PostgreSQL's user cannot pass
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Remove(disk) }()
	cmd := again(t, disk)
	cmd.SysProcAttr.Unshareflags = unix.CLONE_NEWNS
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// fill takes all that is free on a disk; undo gives it back.
func fill(t *testing.T, disk string) (undo func()) {
	t.Helper()
	path := filepath.Join(disk, "filler")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for err == nil {
		_, err = file.Write(make([]byte, 4096))
	}
	if pathErr, ok := err.(*os.PathError); !ok || pathErr.Err != unix.ENOSPC { //nolint:errorlint // exactly this
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}
