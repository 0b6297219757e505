package httpapi

import (
	"context"

	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/httpapi/gen"
)

// defaultFiles is the length of a page of files that asks for none.
const defaultFiles = 100

// ListFiles is GET /v1/sandboxes/{sandbox}/files/list.
func (s *server) ListFiles(ctx context.Context, r gen.ListFilesRequestObject) (gen.ListFilesResponseObject, error) {
	list := guestwire.List{Path: ".", Depth: 1, Limit: defaultFiles, After: value(r.Params.After)}
	if r.Params.Path != nil {
		list.Path = *r.Params.Path
	}
	if r.Params.Depth != nil {
		list.Depth = *r.Params.Depth
	}
	if r.Params.Limit != nil {
		list.Limit = *r.Params.Limit
	}
	if err := checkFile(r.Sandbox, "path", list.Path); err != nil {
		return nil, err
	}
	entries, more, err := s.Files.List(ctx, r.Sandbox, list)
	if err != nil {
		return nil, err
	}
	return gen.ListFiles200JSONResponse{
		Object: gen.ListObjectList, URL: "/v1/sandboxes/" + r.Sandbox + "/files/list", HasMore: more, Data: wireFiles(entries),
	}, nil
}

// StatFile is GET /v1/sandboxes/{sandbox}/files/stat.
func (s *server) StatFile(ctx context.Context, r gen.StatFileRequestObject) (gen.StatFileResponseObject, error) {
	if err := checkFile(r.Sandbox, "path", r.Params.Path); err != nil {
		return nil, err
	}
	entry, err := s.Files.Stat(ctx, r.Sandbox, r.Params.Path)
	if err != nil {
		return nil, err
	}
	return gen.StatFile200JSONResponse(wireFile(entry)), nil
}

// MakeDirectory is POST /v1/sandboxes/{sandbox}/dirs.
func (s *server) MakeDirectory(ctx context.Context, r gen.MakeDirectoryRequestObject) (gen.MakeDirectoryResponseObject, error) {
	if err := checkFile(r.Sandbox, "path", r.Body.Path); err != nil {
		return nil, err
	}
	bits, err := modeOf("mode", r.Body.Mode, directoryMode)
	if err != nil {
		return nil, err
	}
	entry, err := s.Files.MakeDir(ctx, r.Sandbox, r.Body.Path, bits)
	if err != nil {
		return nil, err
	}
	return gen.MakeDirectory201JSONResponse(wireFile(entry)), nil
}

// MoveFile is POST /v1/sandboxes/{sandbox}/files/move.
func (s *server) MoveFile(ctx context.Context, r gen.MoveFileRequestObject) (gen.MoveFileResponseObject, error) {
	if err := checkFile(r.Sandbox, "from", r.Body.From); err != nil {
		return nil, err
	}
	if err := checkFile(r.Sandbox, "to", r.Body.To); err != nil {
		return nil, err
	}
	entry, err := s.Files.Move(ctx, r.Sandbox, guestwire.Move{From: r.Body.From, To: r.Body.To, Replace: value(r.Body.Replace)})
	if err != nil {
		return nil, err
	}
	return gen.MoveFile200JSONResponse(wireFile(entry)), nil
}

// RemoveFile is DELETE /v1/sandboxes/{sandbox}/files.
func (s *server) RemoveFile(ctx context.Context, r gen.RemoveFileRequestObject) (gen.RemoveFileResponseObject, error) {
	if err := checkFile(r.Sandbox, "path", r.Params.Path); err != nil {
		return nil, err
	}
	removed, err := s.Files.Remove(ctx, r.Sandbox, r.Params.Path, value(r.Params.Recursive))
	if err != nil {
		return nil, err
	}
	wire := gen.RemoveFile200JSONResponse{Object: gen.FileRemovedObjectFileRemoved, Entries: removed.Entries}
	wire.Path, wire.PathBase64 = shown(r.Params.Path)
	return wire, nil
}
