package image

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"path"
	"strings"
	"time"

	"github.com/microvmd/microvm/internal/fault"
)

// checker takes an archive member by member and passes on what is in order, in
// plain words: clean names, parents before children, nothing twice. It holds the
// names of the tree and no contents.
type checker struct {
	bounds  Bounds
	out     *tar.Writer
	root    *node
	members int
	bytes   int64
	seen    clues
	last    string // the last member's name, for what goes wrong behind it
}

// check reads a whole archive and writes it to out. An error of out is returned
// as it is.
func (c *checker) check(ctx context.Context, in *stream) error {
	c.root = newDirectory(true)
	c.root.kids[foundDir], c.root.links = newDirectory(true), 3 // the writer has made it
	archive := tar.NewReader(in)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		before := in.read
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return c.end(in, in.read-before)
		}
		if err != nil {
			return c.broken(err)
		}
		if header.Typeflag == tar.TypeXGlobalHeader {
			err = checkGlobal(header)
		} else {
			c.last = header.Name
			err = c.member(header, archive)
		}
		if err != nil {
			return err
		}
	}
}

// end is reached when no member follows. last is how much was read to find that
// out: less than one block that fills up the last member, and the two that end
// every archive.
func (c *checker) end(in *stream, last int64) error {
	if last < 2*512 {
		return c.broken(io.ErrUnexpectedEOF)
	}
	if err := in.finish(); err != nil {
		return err
	}
	if c.members == 0 {
		return fault.New(fault.ImageInvalid, "the archive has no file; send the tar of a root tree")
	}
	return c.out.Close()
}

func (c *checker) broken(err error) error {
	err = brokenStream(err)
	if f := fault.From(err); f.Code == fault.ImageInvalid && c.last != "" {
		return fault.Wrap(f.Cause, f.Code, "behind or in member %+.200q: %s", c.last, f.Message)
	}
	return err
}

// member checks one member, and passes it on.
func (c *checker) member(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeGNUSparse {
		h.Typeflag = tar.TypeReg // its holes are read as zeros
	}
	if err := checkHeader(h); err != nil {
		return err
	}
	name, err := cleanName(h.Name, h.Name, "name")
	if err != nil {
		return err
	}
	kept, err := attributes(h)
	if err != nil {
		return err
	}
	if c.bytes += h.Size; c.bytes > c.bounds.Bytes {
		return c.bounds.tooManyBytes()
	}
	plain := &tar.Header{
		Typeflag: h.Typeflag, Name: name, Size: h.Size, Mode: h.Mode &^ typeBits, Uid: h.Uid, Gid: h.Gid,
		ModTime: h.ModTime, PAXRecords: kept, Format: tar.FormatPAX,
	}
	if name == "" {
		return c.top(h, plain)
	}
	parent, err := c.parent(h.Name, name)
	if err != nil {
		return err
	}
	if err := c.place(parent, h, plain); err != nil {
		return err
	}
	return c.pass(plain, content)
}

// top takes the root's own owner and mode.
func (c *checker) top(h, plain *tar.Header) error {
	if h.Typeflag != tar.TypeDir {
		return refuse(h.Name, "the root of the tree is a %s and must be a directory", words[h.Typeflag])
	}
	if !c.root.implicit {
		return refuse(h.Name, "it is there twice")
	}
	c.root.implicit = false
	plain.Name = "./"
	return c.write(plain)
}

// parent finds the directory that a member lies in. Directories that the archive
// leaves out, or has only later, are made: root's, 0755. Nothing is ever placed
// through a link.
func (c *checker) parent(member, name string) (*node, error) {
	at := c.root
	for end := 0; ; end++ {
		next := strings.IndexByte(name[end:], '/')
		if next < 0 {
			return at, nil
		}
		begin := end
		end += next
		down := at.kids[name[begin:end]]
		if down == nil {
			if err := c.count(); err != nil {
				return nil, err
			}
			down = newDirectory(true)
			if err := c.enter(member, at, name[begin:end], down); err != nil {
				return nil, err
			}
			made := &tar.Header{Typeflag: tar.TypeDir, Name: name[:end] + "/", Mode: 0o755, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
			if err := c.write(made); err != nil {
				return nil, err
			}
		}
		if down.kind != tar.TypeDir {
			return nil, refuse(member, "it lies beneath %+.200q, which is a %s; nothing is placed through one", name[:end], down.word())
		}
		at = down
	}
}

// place makes a member's node, and says in plain what it is.
func (c *checker) place(parent *node, h, plain *tar.Header) error {
	name, base := plain.Name, path.Base(plain.Name)
	if strings.HasPrefix(base, whiteout) {
		return refuse(h.Name, "a name that begins with %q marks what a layer removes: this is a layer, or has one in it; import a whole tree", whiteout)
	}
	if wrongPlace(name, h.Typeflag) {
		return refuse(h.Name, "it is a %s and must be a directory, which the guest needs there", words[h.Typeflag])
	}
	if name == "oci-layout" {
		return refuse(h.Name, "this is an archive of layers and no root tree; unpack it into one first (buildah mount, podman export)")
	}
	old := parent.kids[base]
	if old != nil && (!old.implicit || h.Typeflag != tar.TypeDir) {
		return refuse(h.Name, "it is there twice, first as a %s", old.word())
	}
	var err error
	switch h.Typeflag {
	case tar.TypeDir:
		plain.Name += "/"
		if old != nil {
			old.implicit = false
			return nil // counted already
		}
		err = c.enter(h.Name, parent, base, newDirectory(false))
	case tar.TypeLink:
		err = c.link(h, plain, parent, base)
	default:
		switch h.Typeflag {
		case tar.TypeSymlink:
			err = checkTarget(h)
			plain.Linkname = h.Linkname
		case tar.TypeChar, tar.TypeBlock:
			err = checkDevice(h, name)
			plain.Devmajor, plain.Devminor = h.Devmajor, h.Devminor
		}
		if err == nil {
			err = c.enter(h.Name, parent, base, &node{kind: h.Typeflag, links: 1})
		}
	}
	if err != nil {
		return err
	}
	return c.count()
}

// link gives a file that is there already another name.
func (c *checker) link(h, plain *tar.Header, parent *node, base string) error {
	target, err := cleanName(h.Name, h.Linkname, "target")
	if err != nil {
		return err
	}
	file := c.root
	if target != "" {
		file = c.root.find(target)
	}
	switch {
	case file == nil:
		return refuse(h.Name, "it is a hard link to %+.200q, which is not in the archive before it", h.Linkname)
	case file.kind == tar.TypeDir:
		return refuse(h.Name, "it is a hard link to %+.200q, which is a directory", h.Linkname)
	case file.kind == tar.TypeChar || file.kind == tar.TypeBlock:
		return refuse(h.Name, "it is a hard link to %+.200q, which is a %s", h.Linkname, file.word())
	case file.links >= maxLinks:
		return refuse(h.Name, "%+.200q has %d names already, the most there can be", h.Linkname, maxLinks)
	}
	file.links++
	parent.kids[base] = file
	plain.Linkname = target
	return nil
}

// enter puts a new node into a directory.
func (c *checker) enter(member string, parent *node, base string, n *node) error {
	if n.kind == tar.TypeDir {
		if parent.links >= maxLinks {
			return refuse(member, "the directory above it has %d directories already, the most there can be", maxLinks-2)
		}
		parent.links++
	}
	parent.kids[base] = n
	return nil
}

func (c *checker) count() error {
	if c.members++; c.members > c.bounds.Members {
		return c.bounds.tooManyMembers()
	}
	return nil
}

// wrongPlace says whether only a directory can have this path.
func wrongPlace(name string, kind byte) bool { return wantDirectories[name] && kind != tar.TypeDir }

// pass writes a member with its content.
func (c *checker) pass(plain *tar.Header, content io.Reader) error {
	if err := c.write(plain); err != nil || plain.Typeflag != tar.TypeReg {
		return err
	}
	content, err := c.seen.look(plain, content)
	if err != nil {
		return c.broken(err)
	}
	in := &source{Reader: content}
	_, err = io.Copy(c.out, in)
	if in.err != nil {
		return c.broken(in.err)
	}
	return err
}

func (c *checker) write(plain *tar.Header) error { return c.out.WriteHeader(plain) }

// source tells the errors of a reader from those of a writer.
type source struct {
	io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// workdir refuses a working directory where the tree has something else. Where it
// has a link only the guest can tell.
func (c *checker) workdir(dir string) error {
	at := c.root
	for name := range strings.SplitSeq(strings.Trim(dir, "/"), "/") {
		if name == "" || at.kids[name] == nil {
			return nil
		}
		if at = at.kids[name]; at.kind == tar.TypeSymlink {
			return nil
		}
		if at.kind != tar.TypeDir {
			return fault.Param("workdir", "the tree has a %s at or above %+.70q; name a directory", at.word(), dir)
		}
	}
	return nil
}
