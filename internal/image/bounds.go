package image

import (
	"fmt"

	"github.com/microvmd/microvm/internal/fault"
)

// Bounds is what an imported tree may be at most. Both are settings.
type Bounds struct {
	Bytes   int64 // of all files' contents, as they unpack
	Members int   // files, directories, links and devices
}

// MaxBounds is the most that bounds can be: the writer of the file system has
// room for it.
var MaxBounds = Bounds{Bytes: 64 << 30, Members: 4 << 20}

// headerBytes is what a member may take of the stream beyond its content: its
// header, an extended one and what fills the last block. Longer ones use up what
// shorter ones left.
const headerBytes = 8 << 10

// stream bounds a whole archive as it unpacks, so that neither a compressed
// stream of nothing nor one of endless headers goes on for ever.
func (b Bounds) stream() int64 { return b.Bytes + int64(b.Members)*headerBytes + maxPadding }

func (b Bounds) tooManyBytes() error {
	return tooLarge("the files of the tree have more than %d MiB, which is this node's bound (image-mib)", b.Bytes>>20)
}

func (b Bounds) tooManyMembers() error {
	return tooLarge("the tree has more than %d members, which is this node's bound (image-members)", b.Members)
}

func tooLarge(format string, args ...any) error {
	return fault.New(fault.PayloadTooLarge, "%s; import a smaller tree, or have the bound raised", fmt.Sprintf(format, args...))
}
