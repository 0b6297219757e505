package firecracker

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// bootFiles are the files that every jail needs, below StateDir/boot, each in a
// directory named after the identity of what it was made from: a jail that was
// prepared from older files keeps its links.
type bootFiles struct {
	firecracker string // named execName: the jailer names the jails' directory after it
	jailer      string
	kernel      string
	initrd      string
}

// placeBootFiles copies binaries and kernel into the state directory and packs
// the initrd there, root-owned and read-only, so that jails can hard-link them
// and nobody but root can change them. It removes what earlier versions left.
func (v *VMM) placeBootFiles() (bootFiles, error) {
	var files bootFiles
	for _, file := range []struct {
		source, name string
		mode         uint32
		placed       *string
	}{
		{v.conf.FirecrackerPath, execName, 0o555, &files.firecracker},
		{v.conf.JailerPath, "jailer", 0o555, &files.jailer},
		{v.conf.KernelPath, "vmlinux", 0o444, &files.kernel},
	} {
		err := v.do("place "+file.name, func() (err error) {
			*file.placed, err = place(v.bootDir(), file.name, file.mode, []string{file.source}, func(w io.Writer) error {
				source, err := os.Open(file.source)
				if err != nil {
					return err
				}
				defer func() { _ = source.Close() }()
				_, err = io.Copy(w, source)
				return err
			})
			return err
		})
		if err != nil {
			return bootFiles{}, err
		}
	}
	err := v.do("place initrd", func() error {
		var err error
		files.initrd, err = place(v.bootDir(), "initrd", 0o444, []string{v.conf.GuestdPath}, func(w io.Writer) error {
			return packInitrd(w, v.conf.GuestdPath)
		})
		return err
	})
	if err != nil {
		return bootFiles{}, err
	}
	return files, v.do("remove old boot files", func() error { return v.pruneBootFiles(files) })
}

// place writes dir/<identity of the sources>/name, whole or not at all, unless it
// is there, and returns its path. Identity is what stat says, ctime included,
// which nobody can set back: hashing 30 MB at each start would cost seconds on
// an emulated host.
func place(dir, name string, mode uint32, sources []string, write func(io.Writer) error) (string, error) {
	identity, err := identify(append([]string{packing, name}, sources...)...)
	if err != nil {
		return "", err
	}
	home := filepath.Join(dir, identity)
	path := filepath.Join(home, name)
	if stat, err := os.Lstat(path); err == nil && stat.Mode().IsRegular() {
		return path, nil
	}
	if err := os.MkdirAll(home, 0o700); err != nil {
		return "", err
	}
	temp, err := os.CreateTemp(home, "new-*")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.Remove(temp.Name()) }()
	err = write(temp)
	if err == nil {
		err = temp.Chmod(fs.FileMode(mode))
	}
	if err == nil {
		err = temp.Sync() // a power cut must not leave a short file under a full name
	}
	if err := errors.Join(err, temp.Close()); err != nil {
		return "", err
	}
	return path, os.Rename(temp.Name(), path)
}

// packing is part of every identity: raise it when the way changes in which the
// files are made, so that a new daemon does not take an old initrd.
const packing = "1"

// identify names a state of some files, after two words of what they are for.
func identify(words ...string) (string, error) {
	sum := sha256.New()
	for n, word := range words {
		sum.Write([]byte(strconv.Quote(word)))
		if n < 2 {
			continue
		}
		var stat unix.Stat_t
		if err := unix.Stat(word, &stat); err != nil {
			return "", &fs.PathError{Op: "stat", Path: word, Err: err}
		}
		sum.Write(fmt.Append(nil, stat.Dev, stat.Ino, stat.Size, stat.Mtim, stat.Ctim))
	}
	return hex.EncodeToString(sum.Sum(nil))[:32], nil
}

// pruneBootFiles removes directories of other digests. Blank scratch disks are
// files, and stay.
func (v *VMM) pruneBootFiles(keep bootFiles) error {
	wanted := map[string]bool{}
	for _, path := range []string{keep.firecracker, keep.jailer, keep.kernel, keep.initrd} {
		wanted[filepath.Base(filepath.Dir(path))] = true
	}
	entries, err := os.ReadDir(v.bootDir())
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() && !wanted[entry.Name()] {
			if err := os.RemoveAll(filepath.Join(v.bootDir(), entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// linkShared hard-links a file that all jails may read and none may write. It
// refuses one that the jailed uid could change or could not read.
func linkShared(path string, dir int, name string) error {
	if err := linkFile(path, dir, name); err != nil {
		return err
	}
	var stat unix.Stat_t
	if err := unix.Fstatat(dir, name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG || stat.Uid != 0 || stat.Mode&0o022 != 0 || stat.Mode&0o004 == 0 {
		return fmt.Errorf("%s must be a regular file that root owns, all may read and only root may write; it is uid %d, mode %o", path, stat.Uid, stat.Mode)
	}
	return nil
}

func linkFile(path string, dir int, name string) error {
	if err := unix.Linkat(unix.AT_FDCWD, path, dir, name, 0); err != nil {
		if errors.Is(err, unix.EXDEV) {
			return fmt.Errorf("%s is on another file system than the state directory; put both on one", path)
		}
		return &fs.PathError{Op: "link", Path: path, Err: err}
	}
	return nil
}
