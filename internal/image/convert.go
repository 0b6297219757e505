package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/Microsoft/hcsshim/ext4/tar2ext4"

	"github.com/microvmd/microvm/internal/fault"
)

// diskRoom is for how large a disk the file system has room in its tables. It is
// one number, whatever the bounds are: the same tree gives the same bytes. All
// that MaxBounds allows fits.
const diskRoom = 128 << 30

// convert writes the file system of a tree to out, and returns what it saw of it
// on the way. Memory does not grow with contents, only with the number of names.
//
// The checker runs here, with the caller's stream. The writer of the file system
// reads what passed it at the other end of a pipe.
func convert(ctx context.Context, tree io.Reader, out *os.File, bounds Bounds, arch string) (*checker, error) {
	in, err := openStream(tree, bounds)
	if err != nil {
		return nil, err
	}
	checked, passed := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := writeExt4(checked, out)
		checked.CloseWithError(errWriter) // the checker need not go on
		written <- err
	}()
	c := &checker{bounds: bounds, out: tar.NewWriter(passed), seen: clues{machine: machines[arch]}}
	err = c.check(ctx, in)
	passed.CloseWithError(err) // nil is the end
	writing := <-written
	if err == nil || errors.Is(err, errWriter) {
		err = writing
	}
	if err != nil {
		return nil, err
	}
	return c, c.seen.arch(arch)
}

// errWriter ends the checker when the writer ended.
var errWriter = errors.New("the writer of the file system ended")

// writeExt4 writes a file system for reading only. A fault of the writer is not
// the daemon's end.
func writeExt4(checked io.Reader, out *os.File) (err error) {
	defer func() {
		if broken := recover(); broken != nil {
			err = fmt.Errorf("write file system: %v", broken)
		}
	}()
	err = tar2ext4.ConvertTarToExt4(checked, out, tar2ext4.MaximumDiskSize(diskRoom))
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fault.Wrap(err, fault.NodeAtCapacity, "the node's disk is full; remove images or sandboxes that are not needed")
	}
	if err != nil {
		return fmt.Errorf("write file system: %w", err)
	}
	return nil
}
