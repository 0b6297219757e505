package httpapi

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/httpapi/gen"
)

// WriteFile is POST /v1/sandboxes/{sandbox}/files.
func (s *server) WriteFile(ctx context.Context, r gen.WriteFileRequestObject) (gen.WriteFileResponseObject, error) {
	file, err := s.write(ctx, r.Sandbox, r.Body.Path, r.Body.Mode, nil, bytes.NewReader(r.Body.Content))
	if err != nil {
		return nil, err
	}
	return gen.WriteFile201JSONResponse(file), nil
}

// WriteFileContent is PUT /v1/sandboxes/{sandbox}/files/content.
func (s *server) WriteFileContent(ctx context.Context, r gen.WriteFileContentRequestObject) (gen.WriteFileContentResponseObject, error) {
	file, err := s.write(ctx, r.Sandbox, r.Params.Path, r.Params.Mode, r.Params.AppendAt, r.Body)
	if err != nil {
		return nil, err
	}
	return gen.WriteFileContent201JSONResponse(file), nil
}

// write writes a file or, with at, adds to one.
func (s *server) write(ctx context.Context, sandboxID, path string, mode *string, at *int64, content io.Reader) (gen.File, error) {
	if err := checkFile(sandboxID, "path", path); err != nil {
		return gen.File{}, err
	}
	bits, err := modeOf("mode", mode, fileMode)
	if err != nil {
		return gen.File{}, err
	}
	var entry guestwire.Entry
	if at == nil {
		entry, err = s.Files.Write(ctx, sandboxID, path, bits, content)
	} else {
		entry, err = s.Files.Append(ctx, sandboxID, path, *at, bits, content)
	}
	if err != nil {
		return gen.File{}, err
	}
	return wireFile(entry), nil
}

// WriteFiles is POST /v1/sandboxes/{sandbox}/files/batch.
func (s *server) WriteFiles(ctx context.Context, r gen.WriteFilesRequestObject) (gen.WriteFilesResponseObject, error) {
	if err := checkSandbox(r.Sandbox); err != nil {
		return nil, err
	}
	files := make([]guestwire.NewFile, 0, len(r.Body.Files))
	for i, file := range r.Body.Files {
		name := fmt.Sprintf("files[%d]", i)
		if err := checkFile(r.Sandbox, name+".path", file.Path); err != nil {
			return nil, err
		}
		bits, err := modeOf(name+".mode", file.Mode, fileMode)
		if err != nil {
			return nil, err
		}
		files = append(files, guestwire.NewFile{Path: file.Path, Mode: bits, Content: file.Content})
	}
	entries, err := s.Files.WriteBatch(ctx, r.Sandbox, files)
	if err != nil {
		return nil, err
	}
	return gen.WriteFiles201JSONResponse{Object: gen.FileBatchWrittenObjectFileBatch, Data: wireFiles(entries)}, nil
}
