package microvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
)

// MaxReadBytes is the largest file that Files.Read takes into memory.
const MaxReadBytes = 64 << 20

// FileService writes and reads files of a running sandbox. Relative paths are
// relative to the image's working directory, usually /workspace.
type FileService struct{ c *Client }

// WriteOption sets one thing of a file that is written.
type WriteOption func(url.Values)

// WithMode sets the permission bits of a file, 0 to 0777; the default is 0644.
func WithMode(mode fs.FileMode) WriteOption {
	return func(query url.Values) { query.Set("mode", fmt.Sprintf("%04o", mode.Perm())) }
}

// Write puts content into a file, whole or not at all, and makes missing
// directories. It sends the bytes as they are, so that the size of a JSON body
// is no limit.
func (s *FileService) Write(ctx context.Context, sandbox, path string, content []byte, opts ...WriteOption) (*File, error) {
	if content == nil {
		content = []byte{}
	}
	return s.put(ctx, request{verb: "write file", bytes: content}, sandbox, path, opts)
}

// Upload copies r to its end into a file of any size, which appears whole or
// not at all. It does not close r. It is not repeated once a byte was sent.
func (s *FileService) Upload(ctx context.Context, sandbox, path string, r io.Reader, opts ...WriteOption) (*File, error) {
	size := int64(-1)
	if sized, ok := r.(interface{ Len() int }); ok { // bytes.Reader, bytes.Buffer, strings.Reader
		size = int64(sized.Len())
	}
	return s.put(ctx, request{verb: "upload file", stream: r, size: size}, sandbox, path, opts)
}

// Read gets a file of at most MaxReadBytes; larger ones are for Download.
func (s *FileService) Read(ctx context.Context, sandbox, path string) ([]byte, error) {
	var content []byte
	err := s.open(ctx, "read file", sandbox, path, func(reply *http.Response) error {
		var err error
		content, err = io.ReadAll(io.LimitReader(reply.Body, MaxReadBytes+1))
		if err != nil {
			return &ConnectionError{Sent: true, Err: err}
		}
		if len(content) > MaxReadBytes {
			return fmt.Errorf("the file is over %d bytes; use Download", MaxReadBytes)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return content, nil
}

// Download copies a file of any size to w and returns how many bytes it wrote.
// After an error w may hold the beginning of the file.
func (s *FileService) Download(ctx context.Context, sandbox, path string, w io.Writer) (int64, error) {
	var n int64
	err := s.open(ctx, "download file", sandbox, path, func(reply *http.Response) error {
		var err error
		out := &sinkWriter{w: w}
		n, err = io.Copy(out, reply.Body)
		if out.err != nil {
			return fmt.Errorf("write what came: %w", out.err)
		}
		if err != nil {
			if reply.ContentLength >= 0 {
				err = fmt.Errorf("%d of %d bytes came: %w", n, reply.ContentLength, err)
			}
			return &ConnectionError{Sent: true, Err: err, final: n > 0}
		}
		return nil
	})
	return n, err
}

// put completes r and makes it.
func (s *FileService) put(ctx context.Context, r request, sandbox, path string, opts []WriteOption) (*File, error) {
	segment, err := fileSegment(sandbox, path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.verb, err)
	}
	r.method, r.path, r.query = http.MethodPut, "/v1/sandboxes/"+segment+"/files/content", url.Values{"path": {path}}
	for _, set := range opts {
		set(r.query)
	}
	out := new(File)
	if err := s.c.call(ctx, r, out); err != nil {
		return nil, err
	}
	return out, nil
}

func (s *FileService) open(ctx context.Context, verb, sandbox, path string, read func(*http.Response) error) error {
	segment, err := fileSegment(sandbox, path)
	if err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	return s.c.try(ctx, request{
		verb: verb, method: http.MethodGet, path: "/v1/sandboxes/" + segment + "/files", query: url.Values{"path": {path}}, long: true,
	}, read)
}

func fileSegment(sandbox, path string) (string, error) {
	if path == "" {
		return "", errors.New("the path is empty")
	}
	return escape("a sandbox", sandbox)
}

// sinkWriter keeps the error of a caller's writer, so that it is not taken
// for one of the connection.
type sinkWriter struct {
	w   io.Writer
	err error
}

func (c *sinkWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	if err != nil {
		c.err = err
	}
	return n, err
}
