package httpapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/httpapi/gen"
)

// ReadFile is GET /v1/sandboxes/{sandbox}/files.
func (s *server) ReadFile(ctx context.Context, r gen.ReadFileRequestObject) (gen.ReadFileResponseObject, error) {
	if err := checkFile(r.Sandbox, "path", r.Params.Path); err != nil {
		return nil, err
	}
	part, err := parseRange(value(r.Params.Range))
	if err != nil {
		return nil, err
	}
	if part == nil {
		return s.open(ctx, r, guestwire.Whole, false)
	}
	return s.openPart(ctx, r, *part)
}

func (s *server) open(ctx context.Context, r gen.ReadFileRequestObject, part guestwire.Range, partial bool) (*content, error) {
	body, info, err := s.Files.Read(ctx, r.Sandbox, r.Params.Path, part)
	if err != nil {
		return nil, err
	}
	return &content{body: body, info: info, partial: partial}, nil
}

// openPart opens a part of a file. What the condition of If-Range is held
// against is the file that the part is of, as it was opened.
func (s *server) openPart(ctx context.Context, r gen.ReadFileRequestObject, part guestwire.Range) (gen.ReadFileResponseObject, error) {
	same := func(c *content) bool { return r.Params.IfRange == nil || *r.Params.IfRange == etag(c.info.Entry) }
	if part != noBytes {
		found, err := s.open(ctx, r, part, true)
		if err == nil && same(found) && found.info.Length > 0 {
			return found, nil
		}
		if err == nil {
			_ = found.body.Close() // it was only read
		} else if fault.From(err).Code != fault.RangeInvalid {
			return nil, err
		}
	}
	found, err := s.open(ctx, r, guestwire.Whole, false)
	if err != nil {
		return nil, err
	}
	if !same(found) {
		return found, nil
	}
	size := found.info.Size
	if part.Offset < 0 && part != noBytes && size == 0 {
		return found, nil // all of the last bytes of nothing (RFC 9110, 14.1.2)
	}
	_ = found.body.Close()
	exchangeOf(ctx).Header().Set("Content-Range", "bytes */"+strconv.FormatInt(size, 10))
	return nil, &fault.Error{Code: fault.RangeInvalid, Param: "Range", Message: "the range begins behind the file's end; Content-Range has its size"}
}

// content is a file, or a part of it, as a reply.
type content struct {
	body    io.ReadCloser
	info    guestwire.FileContent
	partial bool
}

// VisitReadFileResponse writes the reply.
func (c *content) VisitReadFileResponse(w http.ResponseWriter) error {
	defer func() { _ = c.body.Close() }()
	header := w.Header()
	header.Set("Content-Type", octets)
	header.Set("Content-Length", strconv.FormatInt(c.info.Length, 10))
	header.Set("Accept-Ranges", "bytes")
	header.Set("ETag", etag(c.info.Entry))
	// A time that is to come is the guest's own, and no date that HTTP allows here.
	if modified := time.Unix(0, c.info.ModifiedNS); !modified.After(time.Now()) {
		header.Set("Last-Modified", modified.UTC().Format(http.TimeFormat))
	}
	status := http.StatusOK
	if c.partial {
		status = http.StatusPartialContent
		header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", c.info.Offset, c.info.Offset+c.info.Length-1, c.info.Size))
	}
	w.WriteHeader(status)
	left := c.info.Length
	_, err := io.Copy(w, whole{c.body, &left})
	return err
}

// etag names the content of a file as far as the guest tells contents apart.
func etag(e guestwire.Entry) string {
	return fmt.Sprintf(`"%x-%x-%x"`, e.Inode, uint64(e.ModifiedNS), e.Size) //nolint:gosec // bits, not a number
}

// whole fails where a body ends early. net/http pads nothing, but it would keep
// the connection, and the caller would read the next reply as file.
type whole struct {
	io.ReadCloser
	left *int64
}

func (w whole) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	*w.left -= int64(n)
	if err == io.EOF && *w.left > 0 { //nolint:errorlint // an io.Reader returns io.EOF itself
		err = io.ErrUnexpectedEOF
	}
	return n, err
}
