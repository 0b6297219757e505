package firecracker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const mkfsWait = 60 * time.Second

// mkfsArgs make an empty ext4 for a disk that lives as long as its sandbox: no
// journal, since nobody comes back to it after a crash, and no inode table to
// clear later, since a sparse file reads as zeros (mke2fs(8),
// assume_storage_prezeroed, e2fsprogs 1.47). All scratch disks share a UUID; the
// host never mounts one, and a guest sees only its own.
var mkfsArgs = []string{
	"-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-U", "6d696372-6f76-6d00-8000-736372617463",
	"-O", "none,extent,filetype,sparse_super,large_file,huge_file,dir_nlink,extra_isize,flex_bg,dir_index,ext_attr,metadata_csum,64bit",
	"-E", "nodiscard,lazy_itable_init=1,assume_storage_prezeroed=1,root_owner=0:0,hash_seed=6d696372-6f76-6d00-8000-736372617463",
}

// blankScratch returns an empty scratch disk of a size to copy from, made the
// first time. Both the file and its copies are sparse.
func (v *VMM) blankScratch(ctx context.Context, mib int) (string, error) {
	v.blank.Lock()
	defer v.blank.Unlock()
	path := filepath.Join(v.bootDir(), fmt.Sprintf("scratch-%d.ext4", mib))
	if stat, err := os.Lstat(path); err == nil && stat.Mode().IsRegular() {
		return path, nil
	}
	err := v.do("make blank scratch", func() error {
		temp := path + ".new"
		if err := os.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o400)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Truncate(int64(mib)<<20), f.Close()); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, mkfsWait)
		defer cancel()
		cmd := exec.CommandContext(ctx, "mkfs.ext4", append(mkfsArgs, temp)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("mkfs.ext4 (needs e2fsprogs 1.47): %w: %.300q", err, out)
		}
		if f, err = os.OpenFile(temp, os.O_RDWR, 0); err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
		return os.Rename(temp, path)
	})
	return path, err
}

// copySparse makes dir/name a copy of source in which holes stay holes: a
// reflink where the file system has them, else extent by extent. It belongs to
// uid and is closed to others.
func copySparse(source string, dir int, name string, uid int) (err error) {
	from, err := os.Open(source)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &os.PathError{Op: "create", Path: name, Err: err}
	}
	to := os.NewFile(uintptr(fd), name)
	defer func() { err = errors.Join(err, to.Close()) }()
	if err := unix.IoctlFileClone(fd, int(from.Fd())); err != nil {
		if err := copyExtents(from, to); err != nil {
			return err
		}
	}
	return to.Chown(uid, uid)
}

func copyExtents(from, to *os.File) error {
	stat, err := from.Stat()
	if err != nil {
		return err
	}
	if err := to.Truncate(stat.Size()); err != nil {
		return err
	}
	for at := int64(0); at < stat.Size(); {
		start, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // only a hole is left
		}
		if err != nil {
			return &os.PathError{Op: "seek data", Path: from.Name(), Err: err}
		}
		end, err := unix.Seek(int(from.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			return &os.PathError{Op: "seek hole", Path: from.Name(), Err: err}
		}
		if _, err := to.Seek(start, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.Copy(to, io.NewSectionReader(from, start, end-start)); err != nil {
			return err
		}
		at = end
	}
	return nil
}
