package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// makeRoot makes the guest's root file system and enters it. Every create waits
// for this, and in a restored guest each page that it touches first costs a fault
// of the host's: so it does nothing that boot can do before a snapshot is taken.
func makeRoot(names []nameFile) error {
	if err := mountScratch(); err != nil {
		return err
	}
	if err := placeNames(imageMount, scratchMount+"/upper", names); err != nil {
		return err
	}
	if err := mountOverlay(); err != nil {
		return err
	}
	for _, path := range guestMounts {
		if err := (mount{path, rootMount + path, "", unix.MS_MOVE, ""}).do(); err != nil {
			return err
		}
	}
	if err := openTemp(rootMount + "/tmp"); err != nil {
		return err
	}
	return enterRoot()
}

func mountScratch() error {
	file, err := waitForDevice(guestwire.ScratchDevice)
	if err != nil {
		return err
	}
	_ = file.Close()
	// The scratch lives as long as the microVM, so nothing is gained by
	// initialising its inode tables in the background or by access times.
	return mount{guestwire.ScratchDevice, scratchMount, "ext4", unix.MS_NODEV | unix.MS_NOATIME, "noinit_itable"}.do()
}

// placeNames writes files of /etc into the upper layer before the overlay is
// mounted: through it each would be a copy of the directory and a rename over
// the image's file, at many times the cost.
func placeNames(lower, upper string, names []nameFile) error {
	etc := filepath.Join(upper, "etc")
	if err := os.MkdirAll(etc, 0o755); err != nil {
		return err
	}
	switch info, err := os.Lstat(filepath.Join(lower, "etc")); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !info.IsDir():
		return errors.New("the image's /etc is no directory")
	default:
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return errors.New("the image's /etc has no owner")
		}
		if err := errors.Join(os.Chown(etc, int(stat.Uid), int(stat.Gid)), os.Chmod(etc, info.Mode())); err != nil {
			return err
		}
	}
	for _, file := range names {
		if err := os.WriteFile(filepath.Join(etc, file.name), []byte(file.text), file.mode); err != nil {
			return err
		}
	}
	return nil
}

// mountOverlay lays scratch over the image. volatile: fsync of a program
// returns at once, for after the loss of the machine there is no scratch to
// come back to.
func mountOverlay() error {
	if err := os.Mkdir(scratchMount+"/work", 0o755); err != nil {
		return err
	}
	data := "lowerdir=" + imageMount + ",upperdir=" + scratchMount + "/upper,workdir=" + scratchMount + "/work,volatile"
	return mount{"overlay", rootMount, "overlay", 0, data}.do()
}

// openTemp makes a directory in which all may write, where the image has none.
// /tmp stays on scratch: in RAM it would eat what programs have.
func openTemp(path string) error {
	const open = os.ModeDir | os.ModeSticky | 0o777
	if info, err := os.Stat(path); err == nil && info.Mode() == open {
		return nil
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	return os.Chmod(path, 0o777|os.ModeSticky)
}

// enterRoot moves the new root over the initial RAM file system, so that
// programs may make user namespaces (a plain chroot forbids them), and makes
// it the worker's. PID 1 stays where it is.
func enterRoot() error {
	if err := unix.Chdir(rootMount); err != nil {
		return fmt.Errorf("enter root: %w", err)
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("enter root: %w", err)
	}
	return unix.Chdir("/")
}
