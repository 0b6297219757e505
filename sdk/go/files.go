package microvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"unicode/utf8"
)

// MaxReadBytes is the largest file that Files.Read takes into memory.
const MaxReadBytes = 64 << 20

// FileService does what is done with files of a running sandbox. Relative paths
// are relative to the image's working directory, usually /workspace. A path may
// be any bytes, but those of WriteBatch, Move and MakeDir must be UTF-8.
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

// WriteBatch writes up to 100 small files, all of them or none: what is wrong with
// one is found before the first is written, and the error's Param names it, as in
// "files[3].path". They are sent as one JSON body, which the node bounds (8 MiB
// unless set otherwise).
func (s *FileService) WriteBatch(ctx context.Context, sandbox string, files []FileWrite) ([]File, error) {
	const verb = "write files"
	segment, err := escape("a sandbox", sandbox)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", verb, err)
	}
	batch := FileBatch{Files: slices.Clone(files)}
	for i, file := range batch.Files {
		if err := checkText(file.Path); err != nil {
			return nil, fmt.Errorf("%s: files[%d]: %w", verb, i, err)
		}
		if file.Content == nil {
			batch.Files[i].Content = []byte{} // null is no content
		}
	}
	out := new(FileBatchWritten)
	r := request{verb: verb, method: http.MethodPost, path: "/v1/sandboxes/" + segment + "/files/batch", json: batch}
	if err := s.c.call(ctx, r, out); err != nil {
		return nil, err
	}
	return out.Data, nil
}

// Upload copies r to its end into a file of any size, which appears whole or
// not at all. It does not close r. It is not repeated once a byte was sent.
func (s *FileService) Upload(ctx context.Context, sandbox, path string, r io.Reader, opts ...WriteOption) (*File, error) {
	return s.put(ctx, request{verb: "upload file", stream: r, size: sizeOf(r)}, sandbox, path, opts)
}

// Append adds r to its end to a file that has exactly at bytes, all of it or
// nothing; one of another size is file_conflict. At 0 the file may be missing, and
// a mode is for one that is made. It is not repeated once a byte was sent: after a
// *ConnectionError Stat says whether it was added.
func (s *FileService) Append(ctx context.Context, sandbox, path string, at int64, r io.Reader, opts ...WriteOption) (*File, error) {
	place := func(query url.Values) { query.Set("append_at", strconv.FormatInt(at, 10)) }
	return s.put(ctx, request{verb: "append to file", stream: r, size: sizeOf(r)}, sandbox, path, append(slices.Clone(opts), place))
}

// sizeOf is how many bytes a reader has, or -1 where it does not say.
func sizeOf(r io.Reader) int64 {
	if sized, ok := r.(interface{ Len() int }); ok { // bytes.Reader, bytes.Buffer, strings.Reader
		return int64(sized.Len())
	}
	return -1
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
// After an error w may hold the beginning of the file; DownloadRange goes on.
func (s *FileService) Download(ctx context.Context, sandbox, path string, w io.Writer) (int64, error) {
	var n int64
	err := s.open(ctx, "download file", sandbox, path, func(reply *http.Response) (err error) {
		n, err = copyReply(w, reply)
		return err
	})
	return n, err
}

// copyReply copies a reply's body to a caller's writer.
func copyReply(w io.Writer, reply *http.Response) (int64, error) {
	out := &sinkWriter{w: w}
	n, err := io.Copy(out, reply.Body)
	if out.err != nil {
		return n, fmt.Errorf("write what came: %w", out.err)
	}
	if err != nil {
		if reply.ContentLength >= 0 {
			err = fmt.Errorf("%d of %d bytes came: %w", n, reply.ContentLength, err)
		}
		return n, &ConnectionError{Sent: true, Err: err, final: n > 0}
	}
	return n, nil
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

// checkText refuses paths that JSON would change on their way.
func checkText(paths ...string) error {
	for _, path := range paths {
		if !utf8.ValidString(path) {
			return fmt.Errorf("%q is not UTF-8, and this call takes no other path", path)
		}
	}
	return nil
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
