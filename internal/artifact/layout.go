package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
)

// StateFile is one file of the daemon's state directory.
type StateFile struct {
	Src    string      // absolute path in the cache
	Dst    string      // relative to the state directory, with slashes
	Mode   fs.FileMode // permission bits
	SHA256 string      // wanted content; empty for the record, which has no pin
	Size   int64       // bytes; 0 for the record
}

// recordsFolder of a state directory holds one record per installed artifact.
const recordsFolder = "artifacts"

// StatePaths says which files of the artifact go where in a state directory:
//
//	bin/firecracker, bin/jailer          0755
//	kernel/vmlinux, kernel/kernel.json   0444
//	images/<id>/rootfs.*, image.json     0444
//	artifacts/<name>.json                0444  what was installed, for doctor
//
// The record comes last, so that it never speaks of files that are not there.
func StatePaths(a Artifact) []StateFile {
	folder, mode := a.folder()
	var files []StateFile
	for _, f := range a.Files {
		files = append(files, StateFile{
			Src: filepath.Join(a.Dir, f.Name), Dst: path.Join(folder, f.Name), Mode: mode, SHA256: f.SHA256, Size: f.Size,
		})
	}
	return append(files, StateFile{
		Src: filepath.Join(a.Dir, recordFile), Dst: path.Join(recordsFolder, a.Name+".json"), Mode: 0o444,
	})
}

func (a Artifact) folder() (folder string, mode fs.FileMode) {
	switch a.Kind {
	case KindFirecracker:
		return "bin", 0o755
	case KindKernel:
		return "kernel", 0o444
	default:
		return path.Join("images", a.ID), 0o444
	}
}

// Install copies artifacts into the daemon's state directory, each file whole
// or not at all: owned by root, not writable by others, hashed on the way. It
// refuses a directory below one that others may write, because whoever can
// rename a parent can replace what root will run. It needs root.
func Install(ctx context.Context, stateDir string, artifacts []Artifact) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("install into %s: needs root; repeat with sudo, or fill only the cache", stateDir)
	}
	return install(ctx, stateDir, artifacts, 0)
}

// install does the work for an owner that tests may choose.
func install(ctx context.Context, stateDir string, artifacts []Artifact, uid int) error {
	if !filepath.IsAbs(stateDir) {
		return fmt.Errorf("install into %q: the path must be absolute", stateDir)
	}
	stateDir = filepath.Clean(stateDir)
	if err := makeDir(stateDir, uid); err != nil {
		return fmt.Errorf("install into %s: %w", stateDir, err)
	}
	for dir := stateDir; ; dir = filepath.Dir(dir) {
		if err := checkDir(dir, uid); err != nil {
			return fmt.Errorf("install into %s: %w", stateDir, err)
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	unlock, err := flock(ctx, filepath.Join(stateDir, ".install.lock"), func() {})
	if err != nil {
		return fmt.Errorf("install into %s: %w", stateDir, err)
	}
	defer unlock()
	for _, a := range artifacts {
		for _, file := range StatePaths(a) {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("install into %s: %w", stateDir, context.Cause(ctx))
			}
			if err := file.install(stateDir, uid); err != nil {
				return fmt.Errorf("install %s: %w", file.Dst, err)
			}
		}
	}
	return nil
}

// makeDir makes a directory and its missing parents.
func makeDir(dir string, uid int) error {
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeDir(filepath.Dir(dir), uid); err != nil {
			return err
		}
		err = os.Mkdir(dir, 0o755)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, uid, -1)) // umask may have narrowed it
}

// checkDir wants a real directory of root's or the owner's that nobody else
// can change; a sticky one, as /tmp, protects what lies in it.
func checkDir(dir string, uid int) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory (links are refused)", dir)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(owner.Uid) != uid && owner.Uid != 0 {
		return fmt.Errorf("%s belongs to another user; chown it to root", dir)
	}
	if info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0 {
		return fmt.Errorf("%s is writable by others (mode %04o); chmod go-w it", dir, info.Mode().Perm())
	}
	return nil
}

const installPrefix = ".install-"

// install places one file. Whoever holds the state directory's lock may remove
// every file with installPrefix: its writer is gone.
func (f StateFile) install(stateDir string, uid int) (err error) {
	target := filepath.Join(stateDir, filepath.FromSlash(f.Dst))
	folder := filepath.Dir(target)
	if err := makeDir(folder, uid); err != nil {
		return err
	}
	for dir := folder; dir != stateDir; dir = filepath.Dir(dir) {
		if err := checkDir(dir, uid); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, item := range entries {
		if strings.HasPrefix(item.Name(), installPrefix) {
			if err := os.Remove(filepath.Join(folder, item.Name())); err != nil {
				return err
			}
		}
	}
	if f.SHA256 != "" && f.installed(target, uid) {
		return nil
	}
	source, err := openRegular(f.Src)
	if err != nil {
		return err
	}
	defer source.Close() //nolint:errcheck // only read
	file, err := os.CreateTemp(folder, installPrefix)
	if err != nil {
		return err
	}
	defer func() {
		_ = file.Close()
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	hash := sha256.New()
	if _, err := io.Copy(io.MultiWriter(file, hash), source); err != nil {
		return err
	}
	if sum := hex.EncodeToString(hash.Sum(nil)); f.SHA256 != "" && sum != f.SHA256 {
		return &ChecksumError{File: path.Base(f.Dst), Wanted: f.SHA256, Found: sum, From: f.Src}
	}
	if err := errors.Join(file.Chown(uid, -1), file.Chmod(f.Mode), file.Sync()); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), target); err != nil {
		return err
	}
	return syncDir(folder)
}

// installed says that the target already is what it should be.
func (f StateFile) installed(target string, uid int) bool {
	info, err := os.Lstat(target)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != f.Mode || info.Size() != f.Size {
		return false
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || int(owner.Uid) != uid {
		return false
	}
	sum, _, err := sumFile(target, f.Size)
	return err == nil && sum == f.SHA256
}

// Installation is an artifact as a state directory records it. Nothing of it
// was hashed.
type Installation struct {
	Artifact
	// Pinned says that this program's manifest has the version. Its checksums
	// and its Supported are then the manifest's, whatever the record says.
	Pinned bool
	// Paths of Files, in their order, relative to the state directory.
	Paths []string
}

// Installed reads what a state directory says is installed in it. A directory
// without records is no error.
func Installed(stateDir string) ([]Installation, error) {
	list, err := parseManifest(manifestText)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Join(stateDir, recordsFolder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read installed artifacts: %w", err)
	}
	var found []Installation
	for _, item := range entries {
		if !strings.HasSuffix(item.Name(), ".json") || strings.HasPrefix(item.Name(), ".") {
			continue
		}
		a, err := readRecord(filepath.Join(stateDir, recordsFolder, item.Name()))
		if err != nil {
			return nil, fmt.Errorf("read installed artifacts: %w", err)
		}
		found = append(found, list.installation(a))
	}
	return found, nil
}

func (m *manifest) installation(a Artifact) Installation {
	i := Installation{Artifact: a}
	i.Supported = false
	folder, _ := a.folder()
	for _, f := range a.Files {
		i.Paths = append(i.Paths, path.Join(folder, f.Name))
	}
	for _, e := range m.Artifacts {
		for _, v := range e.Versions {
			if e.Name != a.Name || v.Version != a.Version || v.Arch != a.Arch || len(v.Files) != len(a.Files) {
				continue
			}
			i.Pinned, i.Supported = true, v.Supported
			for n, spec := range v.Files {
				if spec.SHA256 != "" {
					i.Files[n].SHA256 = spec.SHA256
				}
			}
		}
	}
	return i
}
