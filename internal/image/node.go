package image

import (
	"archive/tar"
	"strings"
)

// node is what a tree has under one name. Of files it knows no more than that
// they are there.
type node struct {
	kids     map[string]*node // of a directory
	links    uint32           // names of a file; a directory's own, its "." and its directories' ".."
	kind     byte             // a tar type
	implicit bool             // a directory that no member made yet
}

// maxLinks is ext4's bound on an inode's names.
const maxLinks = 65000

func newDirectory(implicit bool) *node {
	return &node{kind: tar.TypeDir, kids: map[string]*node{}, links: 2, implicit: implicit}
}

// word says what a node is.
func (n *node) word() string { return words[n.kind] }

// words are the kinds of members that an image can have.
var words = map[byte]string{
	tar.TypeReg: "file", tar.TypeDir: "directory", tar.TypeSymlink: "symbolic link", tar.TypeLink: "hard link",
	tar.TypeChar: "character device", tar.TypeBlock: "block device", tar.TypeFifo: "FIFO",
}

// find returns what lies at a clean path, or nil. It follows no link.
func (n *node) find(path string) *node {
	for name := range strings.SplitSeq(path, "/") {
		if n = n.kids[name]; n == nil {
			return nil
		}
	}
	return n
}
