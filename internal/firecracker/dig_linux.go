package firecracker

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// digBlock is what dig looks at as one: page by page there would be more holes
// than an ext4 extent tree takes cheaply.
const digBlock = 64 << 10

// dig makes holes of the blocks of a file that hold nothing but zeros: most of
// the memory of a guest that has just booted was never touched, and Firecracker
// writes it all the same.
func dig(ctx context.Context, f *os.File) error {
	var zeros [digBlock]byte
	block := make([]byte, digBlock)
	start := int64(-1) // of the run of zeros that ends at the current block
	hole := func(end int64) error {
		if start < 0 {
			return nil
		}
		from := start
		start = -1
		if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, end-from); err != nil {
			return &os.PathError{Op: "dig", Path: f.Name(), Err: err}
		}
		return nil
	}
	for at := int64(0); ; at += digBlock {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := f.ReadAt(block, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		switch zero := bytes.Equal(block[:n], zeros[:n]); {
		case n > 0 && zero && start < 0:
			start = at
		case n > 0 && !zero:
			if err := hole(at); err != nil {
				return err
			}
		}
		if n < digBlock {
			return hole(at + int64(n))
		}
	}
}
