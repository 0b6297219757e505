package guest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// fillFunc copies a body into a file; tests put a full disk in its place.
type fillFunc func(file io.Writer, body io.Reader) (int64, error)

func fill(file io.Writer, body io.Reader) (int64, error) {
	buf := buffers.Get().(*chunk) //nolint:forcetypeassert // the pool holds nothing else
	defer buffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{file}, struct{ io.Reader }{body}, buf[:])
}

// fileWork takes a place among the file requests; the caller gives it back.
func (a *Agent) fileWork() (release func(), err error) {
	select {
	case a.files <- struct{}{}:
		return func() { <-a.files }, nil
	default:
		return nil, refuse(guestwire.Failed, "too many file requests at once")
	}
}

// serveReadFile sends a regular file as it is now: as many bytes as it had
// when it was opened, or a body that ends too early.
func (a *Agent) serveReadFile(w *reply, r *request) error {
	conf, name, err := a.fileRequest(r)
	if err != nil {
		return err
	}
	release, err := a.fileWork()
	if err != nil {
		return err
	}
	defer release()
	file, err := os.OpenFile(a.under(absolute(conf.Workdir, name)), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return fileRefusal(err, guestwire.FileNotFound)
	}
	defer func() { _ = file.Close() }()
	entry, err := describe(file, "")
	if err != nil {
		return fileRefusal(err, guestwire.FileNotFound)
	}
	if entry.Type != guestwire.TypeFile {
		return refuse(guestwire.NotAFile, name)
	}
	text, err := encode(entry)
	if err != nil {
		return err
	}
	w.header(200, "application/octet-stream", entry.Size, guestwire.FileHeader+": "+string(text))
	n, err := fill(w, io.LimitReader(file, entry.Size))
	if err == nil && n < entry.Size {
		err = io.ErrUnexpectedEOF
	}
	return err
}

func (a *Agent) fileRequest(r *request) (conf guestwire.Configure, name string, err error) {
	if conf, err = a.configuration(); err != nil {
		return conf, "", err
	}
	name, err = filePath(r.query)
	return conf, name, err
}

// serveWriteFile writes a file beside its place and then renames it there.
func (a *Agent) serveWriteFile(w *reply, r *request) error {
	conf, name, err := a.fileRequest(r)
	if err != nil {
		return err
	}
	mode, err := strconv.ParseUint(r.query.Get("mode"), 8, 32)
	if err != nil || mode > 0o777 {
		return refuse(guestwire.BadRequest, "mode is not 0000 to 0777")
	}
	if strings.HasSuffix(name, "/") {
		return refuse(guestwire.NotAFile, name)
	}
	release, err := a.fileWork()
	if err != nil {
		return err
	}
	defer release()
	owner, err := a.lookup(conf.User, conf.User)
	if err != nil {
		return err
	}
	place := absolute(conf.Workdir, name)
	entry, err := a.writeFile(a.under(place), fs.FileMode(mode), owner, r.body)
	if err != nil {
		return fileRefusal(err, guestwire.NotAFile)
	}
	entry.Path = place
	w.json(entry)
	return nil
}

// writeFile leaves the file whole in its place, or nothing of it anywhere.
func (a *Agent) writeFile(place string, mode fs.FileMode, owner account, body io.Reader) (entry guestwire.Entry, err error) {
	if err := a.makeDirectory(filepath.Dir(place), owner); err != nil {
		return entry, err
	}
	if info, err := os.Lstat(place); err == nil && !info.Mode().IsRegular() && info.Mode().Type() != fs.ModeSymlink {
		return entry, refuse(guestwire.NotAFile, place)
	}
	file, err := createBeside(place)
	if err != nil {
		return entry, err
	}
	defer func() {
		err = errors.Join(err, file.Close())
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	if _, err = a.fill(file, body); err != nil {
		return entry, err
	}
	if err = give(file, owner); err != nil {
		return entry, err
	}
	if err = file.Chmod(mode); err != nil {
		return entry, err
	}
	if entry, err = describe(file, place); err != nil {
		return entry, err
	}
	return entry, os.Rename(file.Name(), place)
}

// createBeside makes a new file with a name of its own in place's directory.
func createBeside(place string) (*os.File, error) {
	for range 16 {
		var random [8]byte
		if _, err := unix.Getrandom(random[:], 0); err != nil {
			return nil, err
		}
		name := filepath.Join(filepath.Dir(place), fmt.Sprintf(".write-%x", random))
		file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
		if !errors.Is(err, fs.ErrExist) {
			return file, err
		}
	}
	return nil, fs.ErrExist
}

func give(file *os.File, owner account) error {
	if owner.same {
		return nil
	}
	return file.Chown(int(owner.uid), int(owner.gid))
}

// makeDirectory makes a directory and its missing parents; those that it makes
// belong to owner.
func (a *Agent) makeDirectory(dir string, owner account) error {
	info, err := os.Stat(dir)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return refuse(guestwire.NotAFile, dir)
	case !errors.Is(err, fs.ErrNotExist) || filepath.Dir(dir) == dir:
		return err
	}
	if err := a.makeDirectory(filepath.Dir(dir), owner); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); errors.Is(err, fs.ErrExist) {
		return a.sameDirectory(dir, err)
	} else if err != nil {
		return err
	}
	if owner.same {
		return nil
	}
	return os.Lchown(dir, int(owner.uid), int(owner.gid))
}

// sameDirectory is for when somebody else made dir first.
func (a *Agent) sameDirectory(dir string, err error) error {
	if info, statErr := os.Stat(dir); statErr == nil && info.IsDir() {
		return nil
	}
	return err
}

// fileRefusal names why the guest's kernel refused; broken is the code for a
// path that leads through something that is no directory.
func fileRefusal(err error, broken guestwire.Code) error {
	code := guestwire.Failed
	var refusal *guestwire.Error
	switch {
	case errors.As(err, &refusal):
		return refusal
	case errors.Is(err, fs.ErrNotExist):
		code = guestwire.FileNotFound
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		code = guestwire.DiskFull
	case errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENXIO), errors.Is(err, syscall.ENODEV):
		code = guestwire.NotAFile
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ELOOP), errors.Is(err, fs.ErrExist):
		code = broken
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		code = guestwire.PermissionDenied
	case errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, errRequest):
		code = guestwire.BadRequest
	}
	return refuse(code, err.Error())
}
