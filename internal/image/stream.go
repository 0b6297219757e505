package image

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"io"

	"github.com/microvmd/microvm/internal/fault"
)

// maxPadding bounds what follows an archive's end: tar fills its last record,
// of at most 2048 blocks, with zeros.
const maxPadding = 1 << 20

// others are compressions that people may have used, by how they begin.
var others = map[string]string{"zstd": "\x28\xb5\x2f\xfd", "xz": "\xfd7zXZ", "bzip2": "BZh"}

// stream is an archive as it unpacks. It ends with an error rather than give
// more than left.
type stream struct {
	source io.Reader
	read   int64 // bytes so far
	left   int64
	err    error // to end with
}

// openStream takes a tar, or one within gzip.
func openStream(source io.Reader, bounds Bounds) (*stream, error) {
	buffered := bufio.NewReaderSize(source, 64<<10)
	head, err := buffered.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, brokenStream(err)
	}
	if len(head) == 0 {
		return nil, fault.New(fault.ImageInvalid, "the archive is empty; send a tar, or one compressed with gzip")
	}
	for name, magic := range others {
		if bytes.HasPrefix(head, []byte(magic)) {
			return nil, fault.New(fault.ImageInvalid, "the archive is compressed with %s; send a tar, or one compressed with gzip", name)
		}
	}
	s := &stream{source: buffered, left: bounds.stream(), err: bounds.tooManyBytes()}
	if bytes.HasPrefix(head, []byte{0x1f, 0x8b}) {
		if s.source, err = gzip.NewReader(buffered); err != nil {
			return nil, brokenStream(err)
		}
	}
	return s, nil
}

func (s *stream) Read(p []byte) (int, error) {
	if s.left <= 0 {
		return 0, s.err
	}
	n, err := s.source.Read(p[:min(int64(len(p)), s.left)])
	s.read += int64(n)
	s.left -= int64(n)
	return n, err
}

// finish reads what follows the archive's end. More than zeros there is a second
// archive, or a part of the tree that would be lost.
func (s *stream) finish() error {
	more := io.LimitReader(s, maxPadding+1)
	block := make([]byte, 32<<10)
	zeros := make([]byte, len(block))
	for total := 0; ; {
		n, err := more.Read(block)
		if total += n; total > maxPadding || !bytes.Equal(block[:n], zeros[:n]) {
			return fault.New(fault.ImageInvalid, "something follows the archive's end; send one archive and nothing behind it")
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return brokenStream(err)
		}
	}
}

// brokenStream tells what is wrong with the archive from what went wrong on the
// way to it, which keeps its own code.
func brokenStream(err error) error {
	var known *fault.Error
	if errors.As(err, &known) {
		return err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return fault.Wrap(err, fault.ImageInvalid, "the archive is cut off; make it anew")
	}
	return fault.Wrap(err, fault.ImageInvalid, "the archive cannot be read: it is no tar, no gzip, or damaged")
}
