package sandbox

import (
	"context"
	"io"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
)

// Read opens a file, or the part of it that r says. The body has info.Length
// bytes, or fails before. A part that begins behind the end is a
// fault.RangeInvalid.
func (f *Files) Read(ctx context.Context, id, path string, r guestwire.Range) (body io.ReadCloser, info guestwire.FileContent, err error) {
	if err := checkPath("path", path); err != nil {
		return nil, info, err
	}
	special := refusals{guestwire.RangeInvalid: {Code: fault.RangeInvalid, Param: "Range", Message: "the range begins behind the file's end; Content-Range has its size"}}
	body, err = f.receive(ctx, id, special, func(ctx context.Context, agent *guestwire.Client) (content io.ReadCloser, err error) {
		content, info, err = agent.ReadFile(ctx, path, r)
		return content, err
	})
	return body, info, err
}

// Write writes a file from content; it appears whole or not at all. mode is
// the permission bits, 0 to 0777. Missing parent directories are made.
func (f *Files) Write(ctx context.Context, id, path string, mode uint32, content io.Reader) (entry guestwire.Entry, err error) {
	if err := checkFile(path, mode); err != nil {
		return entry, err
	}
	err = f.send(ctx, id, nil, content, func(ctx context.Context, agent *guestwire.Client, content io.Reader) (err error) {
		entry, err = agent.WriteFile(ctx, path, mode, content)
		return err
	})
	return entry, err
}

// Append adds content to a file that has exactly at bytes; where at is 0 it may
// be missing, and is then made with mode. All of it is added, or nothing.
func (f *Files) Append(ctx context.Context, id, path string, at int64, mode uint32, content io.Reader) (entry guestwire.Entry, err error) {
	if err := checkFile(path, mode); err != nil {
		return entry, err
	}
	if at < 0 {
		return entry, fault.Param("append_at", "append_at must be at least 0")
	}
	special := refusals{guestwire.Conflict: {
		Code: fault.FileConflict, Param: "append_at",
		Message: "the file has not the size that append_at says, or somebody else adds to it; get its size from files/stat and go on there",
	}}
	err = f.send(ctx, id, special, content, func(ctx context.Context, agent *guestwire.Client, content io.Reader) (err error) {
		entry, err = agent.AppendFile(ctx, path, at, mode, content)
		return err
	})
	return entry, err
}

func checkFile(path string, mode uint32) error {
	if err := checkPath("path", path); err != nil {
		return err
	}
	return checkMode("mode", mode)
}
