package httpapi

import (
	"bytes"
	"context"
	"io"
	"strconv"
	"strings"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/httpapi/gen"
)

// defaultMode is the permission bits of a file that asks for none.
const defaultMode = "0644"

// WriteFile is POST /v1/sandboxes/{sandbox}/files.
func (s *server) WriteFile(ctx context.Context, r gen.WriteFileRequestObject) (gen.WriteFileResponseObject, error) {
	file, err := s.write(ctx, r.Sandbox, r.Body.Path, r.Body.Mode, bytes.NewReader(r.Body.Content))
	if err != nil {
		return nil, err
	}
	return gen.WriteFile201JSONResponse(file), nil
}

// WriteFileContent is PUT /v1/sandboxes/{sandbox}/files/content.
func (s *server) WriteFileContent(ctx context.Context, r gen.WriteFileContentRequestObject) (gen.WriteFileContentResponseObject, error) {
	file, err := s.write(ctx, r.Sandbox, r.Params.Path, r.Params.Mode, r.Body)
	if err != nil {
		return nil, err
	}
	return gen.WriteFileContent201JSONResponse(file), nil
}

// ReadFile is GET /v1/sandboxes/{sandbox}/files.
func (s *server) ReadFile(ctx context.Context, r gen.ReadFileRequestObject) (gen.ReadFileResponseObject, error) {
	if err := checkFile(r.Sandbox, r.Params.Path); err != nil {
		return nil, err
	}
	content, size, err := s.Files.Read(ctx, r.Sandbox, r.Params.Path)
	if err != nil {
		return nil, err
	}
	return gen.ReadFile200ApplicationOctetStreamResponse{Body: whole{content, &size}, ContentLength: size}, nil
}

func (s *server) write(ctx context.Context, sandboxID, path string, mode *string, content io.Reader) (gen.File, error) {
	if err := checkFile(sandboxID, path); err != nil {
		return gen.File{}, err
	}
	octal := defaultMode
	if mode != nil {
		octal = *mode
	}
	bits, err := strconv.ParseUint(octal, 8, 32)
	if err != nil || bits > 0o777 {
		return gen.File{}, fault.Param("mode", "mode must be octal permission bits, 0000 to 0777")
	}
	info, err := s.Files.Write(ctx, sandboxID, path, uint32(bits), content)
	if err != nil {
		return gen.File{}, err
	}
	return gen.File{Object: gen.FileObjectFile, Path: info.Path, Size: info.Size, Mode: info.Mode}, nil
}

func checkFile(sandboxID, path string) error {
	if err := checkSandbox(sandboxID); err != nil {
		return err
	}
	if len(path) > guestwire.MaxPath || strings.ContainsRune(path, 0) {
		return fault.Param("path", "path must be at most %d bytes and hold no NUL", guestwire.MaxPath)
	}
	return nil
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
