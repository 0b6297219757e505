package image

import (
	"archive/tar"
	"slices"
	"strings"

	"github.com/microvmd/microvm/internal/fault"
)

const attributePrefix = "SCHILY.xattr."

// understood are the extended records that say what a header's fields have taken
// in already, or say nothing of the file.
var understood = []string{
	"path", "linkpath", "size", "uid", "gid", "uname", "gname", "mtime", "atime", "ctime", "hdrcharset", "comment",
	"LIBARCHIVE.creationtime", "SCHILY.dev", "SCHILY.ino", "SCHILY.nlink",
}

// attributes returns the extended attributes of a member that an image keeps:
// file capabilities and those of users. Any other is refused, since a tree that
// quietly lost one is another tree.
func attributes(h *tar.Header) (map[string]string, error) {
	kept := map[string]string{}
	for key, value := range h.PAXRecords {
		name, is := strings.CutPrefix(key, attributePrefix)
		switch {
		case !is && (slices.Contains(understood, key) || strings.HasPrefix(key, "GNU.sparse.")):
			continue
		case !is:
			return nil, refuse(h.Name, "its extended header has %+.100q, which an image cannot keep; make the archive without it", key)
		case name != "security.capability" && !strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "user.overlay."):
			return nil, refuse(h.Name, "its attribute is %+.100q, and an image keeps security.capability and user.* only; make the archive without it (tar --no-xattrs --no-acls --no-selinux)", name)
		case h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir:
			return nil, refuse(h.Name, "a %s with the attribute %+.100q", words[h.Typeflag], name)
		case name == "user." || len(name) > maxName || !printable(name):
			return nil, refuse(h.Name, "its attribute has a name of %d bytes or not of plain letters: %+.100q", len(name), name)
		}
		kept[key] = value
	}
	if !attributesFit(kept) {
		return nil, refuse(h.Name, "its attributes take more than an inode holds; make the archive without them (tar --no-xattrs)")
	}
	return kept, nil
}

// attributesFit says whether the ext4 writer can lay these out: some within the
// inode, as they come by name, and at most one in a block beside it. It sorts a
// block's entries wrongly, so that the kernel would not find a second.
func attributesFit(kept map[string]string) bool {
	const (
		inInode = 96        // 104 bytes behind the fields, less 8 for begin and end
		inBlock = 4096 - 36 // less 32 for the header and 4 for the end
		entry   = 16
	)
	round := func(n int) int { return (n + 3) &^ 3 }
	names := make([]string, 0, len(kept))
	for name := range kept {
		names = append(names, name)
	}
	slices.Sort(names)
	left, beside := inInode, 0
	for _, name := range names {
		_, short, _ := strings.Cut(strings.TrimPrefix(name, attributePrefix), ".") // the class is a number on disk
		need := entry + round(len(short)) + round(len(kept[name]))
		switch {
		case need <= left:
			left -= need
		case need <= inBlock && beside == 0:
			beside++
		default:
			return false
		}
	}
	return true
}

func printable(name string) bool {
	for _, c := range []byte(name) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}

// checkGlobal refuses what an archive says of all its members at once, but for a
// comment (git archive writes one).
func checkGlobal(h *tar.Header) error {
	for key := range h.PAXRecords {
		if key != "comment" {
			return fault.New(fault.ImageInvalid, "the archive has a global header with %+.100q; make it without", key)
		}
	}
	return nil
}
