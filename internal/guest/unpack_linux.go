package guest

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// Directories are kept until the end of an archive, when they get their modes and
// times.
const (
	unpackedDirBytes = 16 << 20 // of memory for them
	unpackedDirCost  = 96       // bytes for each beside its name
)

// unpack puts an archive into a directory. It goes to the directory of each
// member through root, so nothing leads out of it, also where a program swaps
// directories for links while it works; and what it makes there it makes by the
// descriptor of that directory, as a new file that is renamed to its place.
type unpack struct {
	agent *Agent
	root  *os.Root
	owner account
	keep  bool // owners, setuid and setgid of the archive
	sums  guestwire.Unpacked
	dirs  map[string]attributes // of directories that are not finished
	bytes int                   // of the names in dirs
}

// serveWriteArchive unpacks an archive into a directory, which it makes.
func (a *Agent) serveWriteArchive(w *reply, r *request) error {
	name, err := filePath(r.query)
	if err != nil {
		return err
	}
	squeezed, err1 := truth(r.query, "gzip")
	keep, err2 := truth(r.query, "keep_owners")
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	conf, release, err := a.beginFile()
	if err != nil {
		return err
	}
	defer release()
	owner, err := a.lookup(conf.User, conf.User)
	if err != nil {
		return err
	}
	dir := a.under(absolute(conf.Workdir, name))
	if err := makeDirectory(dir, owner, nil); err != nil {
		refusal := fileRefusal(err, guestwire.BadDirectory)
		if refusal.Code == guestwire.NotAFile {
			refusal.Code = guestwire.BadDirectory
		}
		return refusal
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fileRefusal(err, guestwire.BadDirectory)
	}
	defer func() { _ = root.Close() }()
	return a.late(w, func(ctx context.Context) (any, error) {
		u := &unpack{agent: a, root: root, owner: owner, keep: keep && !owner.same, dirs: make(map[string]attributes)}
		err := u.read(ctx, r.body, squeezed)
		if finished := u.finish(); err == nil {
			err = finished
		}
		if err != nil {
			return nil, fileRefusal(err, guestwire.BadRequest)
		}
		return u.sums, nil
	})
}

// read unpacks all members of an archive, and reads it to its end.
func (u *unpack) read(ctx context.Context, body io.Reader, squeezed bool) error {
	in := io.Reader(bufio.NewReaderSize(body, packBuffer))
	if squeezed {
		zip, err := gzip.NewReader(in)
		if err != nil {
			return malformed(err)
		}
		in = zip
	}
	members := tar.NewReader(in)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		head, err := members.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, in) // what pads it, and the sum of what was compressed
			return malformed(err)
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // that one is told of below
			return malformed(err)
		}
		if u.sums.Entries == guestwire.MaxMembers {
			return refuse(guestwire.TooMuch, "too many members")
		}
		if err := u.member(head, members); err != nil {
			return u.refusal(head.Name, err)
		}
		u.sums.Entries++
	}
}

// malformed is the refusal of what is no archive.
func malformed(err error) error {
	if err == nil {
		return nil
	}
	return refuse(guestwire.BadRequest, "archive: "+err.Error())
}

// refusal names the member that was refused. What os.Root refuses of itself,
// without an error of the kernel, leads out of it.
func (u *unpack) refusal(name string, err error) error {
	var errno unix.Errno
	var refusal *guestwire.Error
	var escape *fs.PathError
	if errors.As(err, &refusal) {
		return refuse(refusal.Code, name)
	}
	if errors.As(err, &escape) && !errors.As(err, &errno) && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrClosed) {
		return refuse(guestwire.UnsafeMember, name)
	}
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
		return malformed(err)
	}
	return refuse(fileRefusal(err, guestwire.Exists).Code, name)
}

// finish gives directories their modes and times, those within others first: the
// mode of a directory may keep the agent out. One that is not there any more gets
// none.
func (u *unpack) finish() (err error) {
	names := slices.Sorted(maps.Keys(u.dirs))
	for _, name := range slices.Backward(names) {
		dir, openErr := openBeneath(u.root, name)
		if openErr != nil {
			continue
		}
		if giveErr := u.dirs[name].give(dir); giveErr != nil && err == nil {
			err = u.refusal(name, giveErr)
		}
		_ = dir.Close()
	}
	return err
}

// openBeneath opens a directory beneath a root, unless its last part is a link.
func openBeneath(root *os.Root, name string) (*os.File, error) {
	dir, err := root.OpenFile(path.Dir(name), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil || name == "." {
		return dir, err
	}
	p := place{dir: dir, name: path.Base(name)}
	defer p.close()
	return p.open(unix.O_RDONLY | unix.O_DIRECTORY)
}
