//go:build !guestd

package guestwire

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
)

// Range is a part of a file.
type Range struct {
	Offset int64 // of the first byte; negative: so many bytes before the end, or all
	Length int64 // at most so many bytes; negative: to the end
}

// Whole is all of a file.
var Whole = Range{Length: -1}

// FileContent says what a file is, and which part of it comes.
type FileContent struct {
	Entry  // without Path
	Offset int64
	Length int64
}

// part is where a range lies in a file of that size.
func (r Range) part(size int64) (offset, length int64) {
	offset = min(r.Offset, size)
	if r.Offset < 0 {
		offset = size - min(size, negated(r.Offset))
	}
	length = size - offset
	if r.Length >= 0 {
		length = min(length, r.Length)
	}
	return offset, length
}

func negated(n int64) int64 {
	if n == math.MinInt64 {
		return math.MaxInt64
	}
	return -n
}

// ReadFile opens a part of a regular file of the guest, as it is now: the body
// has info.Length bytes, or fails. A range that begins behind the end is
// RangeInvalid, and so is one that begins there, unless the file is empty and all
// of it was asked for.
func (c *Client) ReadFile(ctx context.Context, path string, r Range) (body io.ReadCloser, info FileContent, err error) {
	query := url.Values{"path": {path}, "offset": {strconv.FormatInt(r.Offset, 10)}}
	if r.Length >= 0 {
		query.Set("length", strconv.FormatInt(r.Length, 10))
	}
	reply, err := c.do(ctx, RouteReadFile, "", query, nil)
	if err != nil {
		return nil, info, wrap("read file", err)
	}
	if info, err = readContent(reply, r); err != nil {
		drop(reply, err)
		return nil, info, wrap("read file", err)
	}
	return reply.Body, info, nil
}

// readContent reads what the header of a reply says of a file.
func readContent(reply *http.Response, r Range) (FileContent, error) {
	var info FileContent
	if err := json.Unmarshal([]byte(reply.Header.Get(FileHeader)), &info.Entry); err != nil {
		return info, fmt.Errorf("reply does not describe the file: %w", ErrProtocol)
	}
	if err := info.checkRest(); err != nil {
		return info, err
	}
	if info.Path != "" || info.Type != TypeFile {
		return info, fmt.Errorf("content of what is no file: %w", ErrProtocol)
	}
	if info.Offset, info.Length = r.part(info.Size); reply.ContentLength != info.Length {
		return info, fmt.Errorf("another length than that of the range: %w", ErrProtocol)
	}
	return info, nil
}

// WriteFile writes a file of the guest from content; it appears whole or not at
// all. mode is the permission bits.
func (c *Client) WriteFile(ctx context.Context, path string, mode uint32, content io.Reader) (Entry, error) {
	out, err := c.putFile(ctx, path, url.Values{"path": {path}, "mode": {octal(mode)}}, content)
	return out, wrap("write file", err)
}

// AppendFile adds content to a regular file that has exactly at bytes; else, or
// when somebody else adds to it, it is a Conflict. All of it is added, or
// nothing. With at 0 a file that is not there is made, with mode; one that is
// keeps its own.
func (c *Client) AppendFile(ctx context.Context, path string, at int64, mode uint32, content io.Reader) (Entry, error) {
	query := url.Values{"path": {path}, "mode": {octal(mode)}, "append_at": {strconv.FormatInt(at, 10)}}
	out, err := c.putFile(ctx, path, query, content)
	if err == nil && out.Size < at {
		err = fmt.Errorf("file is shorter than before: %w", ErrProtocol)
	}
	return out, wrap("append to file", err)
}

func (c *Client) putFile(ctx context.Context, path string, query url.Values, content io.Reader) (Entry, error) {
	out, err := c.entry(ctx, RouteWriteFile, path, query, content)
	if err == nil && out.Type != TypeFile {
		err = fmt.Errorf("what was written is no file: %w", ErrProtocol)
	}
	return out, err
}

func octal(mode uint32) string { return fmt.Sprintf("%04o", mode) }

// entry is a call that answers with the entry of a path.
func (c *Client) entry(ctx context.Context, route, path string, query url.Values, body io.Reader) (Entry, error) {
	var out Entry
	reply, err := c.do(ctx, route, "", query, body)
	if err == nil {
		err = decode(reply, &out)
	}
	if err == nil {
		err = out.checkAs(path)
	}
	return out, err
}

// Move renames what lies at From, as rename(2) does. Without Replace, something
// at To is Exists; from one file system to another it is OtherDisk; into itself
// it is BadRequest.
func (c *Client) Move(ctx context.Context, move Move) (Entry, error) {
	body, err := json.Marshal(move)
	if err != nil {
		return Entry{}, wrap("move", err)
	}
	out, err := c.entry(ctx, RouteMove, move.To, nil, bytes.NewReader(body))
	return out, wrap("move", err)
}

// MakeDir makes a directory and its missing parents. One that is there stays as
// it is; anything else there is Exists. mode is the permission bits.
func (c *Client) MakeDir(ctx context.Context, path string, mode uint32) (Entry, error) {
	body, err := json.Marshal(MakeDir{Path: path, Mode: mode})
	if err != nil {
		return Entry{}, wrap("make directory", err)
	}
	out, err := c.entry(ctx, RouteMakeDir, path, nil, bytes.NewReader(body))
	return out, wrap("make directory", err)
}

// Stat describes what lies at a path; a link is not followed.
func (c *Client) Stat(ctx context.Context, path string) (Entry, error) {
	out, err := c.entry(ctx, RouteStat, path, url.Values{"path": {path}}, nil)
	return out, wrap("look at file", err)
}
