package guest

import (
	"errors"
	"io"
	"io/fs"
	"net/url"
	"os"
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
		return nil, refuse(guestwire.TooMuch, "too many file requests at once")
	}
}

// beginFile begins a file request: what is in force, and a place among them.
func (a *Agent) beginFile() (conf guestwire.Configure, release func(), err error) {
	if conf, err = a.configuration(); err == nil {
		release, err = a.fileWork()
	}
	return conf, release, err
}

// filePath takes the path of a file request.
func filePath(query url.Values) (string, error) {
	name := query.Get("path")
	return name, checkPath(name)
}

func checkPath(name string) error {
	if name == "" || len(name) > guestwire.MaxPath || strings.ContainsRune(name, 0) {
		return refuse(guestwire.BadRequest, "path is empty, too long or has a NUL byte")
	}
	return nil
}

// truth reads a query's yes or no.
func truth(query url.Values, name string) (bool, error) {
	value, err := strconv.ParseBool(query.Get(name))
	if err != nil {
		return false, refuse(guestwire.BadRequest, name+" is neither true nor false")
	}
	return value, nil
}

// number reads a query's number, or otherwise where there is none.
func number(query url.Values, name string, otherwise int64) (int64, error) {
	text := query.Get(name)
	if text == "" {
		return otherwise, nil
	}
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, refuse(guestwire.BadRequest, name+" is no number")
	}
	return value, nil
}

// serveReadFile sends a regular file, or a part of it, as it is now: as many
// bytes as it had when it was opened, or a body that ends too early.
func (a *Agent) serveReadFile(w *reply, r *request) error {
	name, err := filePath(r.query)
	if err != nil {
		return err
	}
	from, err1 := number(r.query, "offset", 0)
	length, err2 := number(r.query, "length", -1)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	conf, release, err := a.beginFile()
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
	if from, length, err = part(entry.Size, from, length); err != nil {
		return err
	}
	text, err := encode(entry)
	if err != nil {
		return err
	}
	w.header(200, "application/octet-stream", length, guestwire.FileHeader+": "+string(text))
	n, err := fill(w, io.NewSectionReader(file, from, length))
	if err == nil && n < length {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// part is where a range lies in a file of that size: a negative offset counts
// from the end, a negative length goes to it.
func part(size, offset, length int64) (from, n int64, err error) {
	if offset < 0 {
		offset = max(size+offset, 0)
	} else if offset > 0 && offset >= size {
		return 0, 0, refuse(guestwire.RangeInvalid, strconv.FormatInt(size, 10))
	}
	n = size - offset
	if length >= 0 {
		n = min(n, length)
	}
	return offset, n, nil
}

// serveWriteFile writes a file as a whole, or adds to one.
func (a *Agent) serveWriteFile(w *reply, r *request) error {
	mode, err := strconv.ParseUint(r.query.Get("mode"), 8, 32)
	if err != nil {
		return refuse(guestwire.BadRequest, "mode is no octal number")
	}
	at, err := number(r.query, "append_at", 0)
	if err != nil {
		return err
	}
	conf, release, err := a.beginFile()
	if err != nil {
		return err
	}
	defer release()
	path, err := a.writable(conf, r.query.Get("path"), uint32(mode))
	if err != nil {
		return err
	}
	owner, err := a.lookup(conf.User, conf.User)
	if err != nil {
		return err
	}
	write := a.writeFile
	if r.query.Has("append_at") {
		write = func(path string, mode uint32, owner account, body io.Reader) (guestwire.Entry, error) {
			return a.appendFile(path, at, mode, owner, body)
		}
	}
	entry, err := write(path, uint32(mode), owner, r.body)
	if err != nil {
		return fileRefusal(err, guestwire.NotAFile)
	}
	entry.Path = path
	w.json(entry)
	return nil
}

// writable is the absolute path of a file that is to be written.
func (a *Agent) writable(conf guestwire.Configure, name string, mode uint32) (string, error) {
	if err := checkPath(name); err != nil {
		return "", err
	}
	if mode > 0o777 {
		return "", refuse(guestwire.BadRequest, "mode is not 0000 to 0777")
	}
	if strings.HasSuffix(name, "/") {
		return "", refuse(guestwire.NotAFile, name)
	}
	return absolute(conf.Workdir, name), nil
}

// writeFile leaves the file whole in its place, or nothing of it anywhere.
func (a *Agent) writeFile(path string, mode uint32, owner account, body io.Reader) (guestwire.Entry, error) {
	var made []string
	s, entry, err := a.stageAt(path, owned(owner, mode), owner, &made, body)
	if err == nil {
		err = s.commit()
		s.close()
	}
	if err != nil {
		unmake(made)
	}
	return entry, err
}

// stageAt stages a file for a path of the guest, and adds to made what was
// missing on the way.
func (a *Agent) stageAt(path string, has attributes, owner account, made *[]string, body io.Reader) (s *staged, entry guestwire.Entry, err error) {
	err = again(func() error {
		p, err := a.makePlace(path, owner, made)
		if err == nil {
			s, entry, err = a.stageFile(p, has, body)
		}
		return err
	})
	return s, entry, err
}

// fileRefusal names why the guest's kernel refused; broken is the code for a
// path that leads through something that is no directory.
func fileRefusal(err error, broken guestwire.Code) *guestwire.Error {
	code := guestwire.Failed
	var refusal *guestwire.Error
	switch {
	case errors.As(err, &refusal):
		return refusal
	case errors.Is(err, fs.ErrNotExist):
		code = guestwire.FileNotFound
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		code = guestwire.DiskFull
	case errors.Is(err, syscall.ENOTEMPTY):
		code = guestwire.NotEmpty
	case errors.Is(err, syscall.EXDEV):
		code = guestwire.OtherDisk
	case errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENXIO), errors.Is(err, syscall.ENODEV):
		code = guestwire.NotAFile
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ELOOP), errors.Is(err, fs.ErrExist):
		code = broken
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.EBUSY):
		code = guestwire.PermissionDenied
	case errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.EFBIG), errors.Is(err, errRequest):
		code = guestwire.BadRequest
	}
	return refuse(code, err.Error())
}
