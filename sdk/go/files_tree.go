package microvm

import (
	"context"
	"encoding/base64"
	"fmt"
	"io/fs"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// listWait is how long the node may take for one page of a directory, which may
// have a million entries, beyond what any read may.
const listWait = time.Minute

// DefaultDirectoryMode is the permission bits of a directory without WithMode.
const DefaultDirectoryMode fs.FileMode = 0o755

// ExactPath is the file's path byte for byte. Path shows what is no UTF-8 in it as
// U+FFFD.
func (f File) ExactPath() string { return exact(f.Path, f.PathBase64) }

// ExactTarget is what a symlink says, byte for byte; "" of anything else.
func (f File) ExactTarget() string {
	if f.Target == nil {
		return ""
	}
	return exact(*f.Target, f.TargetBase64)
}

func exact(shown string, encoded *string) string {
	if encoded != nil {
		if bytes, err := base64.StdEncoding.DecodeString(*encoded); err == nil {
			return string(bytes)
		}
	}
	return shown
}

// Stat gets what is at a path: of a symlink the link itself.
func (s *FileService) Stat(ctx context.Context, sandbox, path string) (*File, error) {
	return about[File](ctx, s.c, request{verb: "get file", method: http.MethodGet, query: url.Values{"path": {path}}}, sandbox, path, "/files/stat")
}

// List gets one page of a directory, depth first, names by their bytes. A page may
// have fewer than Limit entries although HasMore is true.
func (s *FileService) List(ctx context.Context, sandbox string, params ListFilesParams) (*FileList, error) {
	query := url.Values{}
	for name, value := range map[string]*string{"path": params.Path, "after": params.After} {
		if value != nil {
			query.Set(name, *value)
		}
	}
	for name, value := range map[string]*int{"depth": params.Depth, "limit": params.Limit} {
		if value != nil {
			query.Set(name, strconv.Itoa(*value))
		}
	}
	return about[FileList](ctx, s.c, request{verb: "list files", method: http.MethodGet, query: query, wait: listWait}, sandbox, ".", "/files/list")
}

// All iterates over all entries of a directory, page by page. It stops at the first
// error, which it yields. Limit is the size of a page (default 100).
func (s *FileService) All(ctx context.Context, sandbox string, params ListFilesParams) iter.Seq2[File, error] {
	return all(params.Limit, params.After, func(limit int, after *string) ([]File, bool, error) {
		params.Limit, params.After = &limit, after
		list, err := s.List(ctx, sandbox, params)
		if err != nil {
			return nil, false, err
		}
		return list.Data, list.HasMore, nil
	}, File.ExactPath)
}

// MakeDir makes a directory, of mode DefaultDirectoryMode unless WithMode says
// another, and those above it that are missing. One that is there is no error and
// stays as it is, so it is repeated after a lost connection.
func (s *FileService) MakeDir(ctx context.Context, sandbox, path string, opts ...WriteOption) (*File, error) {
	if err := checkText(path); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	set := url.Values{}
	WithMode(DefaultDirectoryMode)(set)
	for _, option := range opts {
		option(set)
	}
	mode := set.Get("mode")
	return about[File](ctx, s.c, request{verb: "make directory", method: http.MethodPost, json: DirectoryMake{Path: path, Mode: &mode}, again: true}, sandbox, path, "/dirs")
}

// Move renames a file, a symlink or a directory in one step. What is at To is
// replaced only with Replace. It is repeated only when no connection could be made.
func (s *FileService) Move(ctx context.Context, sandbox string, move FileMove) (*File, error) {
	if err := checkText(move.From, move.To); err != nil {
		return nil, fmt.Errorf("move file: %w", err)
	}
	return about[File](ctx, s.c, request{verb: "move file", method: http.MethodPost, json: move}, sandbox, move.From, "/files/move")
}

// Remove removes a file, a symlink itself or a directory; one that has entries only
// with recursive. It is repeated only when no connection could be made: what was
// removed is file_not_found then.
func (s *FileService) Remove(ctx context.Context, sandbox, path string, recursive bool) (*FileRemoved, error) {
	query := url.Values{"path": {path}}
	if recursive {
		query.Set("recursive", "true")
	}
	return about[FileRemoved](ctx, s.c, request{verb: "remove file", method: http.MethodDelete, query: query, once: true}, sandbox, path, "/files")
}

// about makes a request about a path, to what lies below its sandbox.
func about[T any](ctx context.Context, c *Client, r request, sandbox, path, below string) (*T, error) {
	segment, err := fileSegment(sandbox, path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.verb, err)
	}
	r.path = "/v1/sandboxes/" + segment + below
	out := new(T)
	if err := c.call(ctx, r, out); err != nil {
		return nil, err
	}
	return out, nil
}
