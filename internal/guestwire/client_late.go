//go:build !guestd

package guestwire

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

type movedKey struct{}

// WithMoved makes a context of a call that tells whenever something comes from
// the guest before the call's result: a sign of life of a late reply. moved must
// return at once.
func WithMoved(ctx context.Context, moved func()) context.Context {
	return context.WithValue(ctx, movedKey{}, moved)
}

// NewFile is one file of a batch.
type NewFile struct {
	Path    string
	Mode    uint32 // permission bits
	Content []byte
}

// WriteFiles writes at most MaxBatch files: all of them, or none. The detail of a
// refusal is the path that was refused.
func (c *Client) WriteFiles(ctx context.Context, files []NewFile) ([]Entry, error) {
	if len(files) > MaxBatch {
		return nil, fmt.Errorf("write files: %d files, at most %d are sent", len(files), MaxBatch)
	}
	parts := make([]io.Reader, 0, 2*len(files))
	for _, file := range files {
		head, err := AppendFileHead(nil, FileHead{Path: file.Path, Mode: file.Mode, Size: int64(len(file.Content))})
		if err != nil {
			return nil, wrap("write files", err)
		}
		parts = append(parts, bytes.NewReader(head), bytes.NewReader(file.Content))
	}
	var out Entries
	err := c.late(ctx, RouteWriteFiles, nil, io.MultiReader(parts...), MaxBatchReply, &out)
	if err == nil {
		err = checkBatch(files, out.Entries)
	}
	if err != nil {
		return nil, wrap("write files", err)
	}
	return out.Entries, nil
}

func checkBatch(files []NewFile, entries []Entry) error {
	if len(entries) != len(files) {
		return fmt.Errorf("another number of files: %w", ErrProtocol)
	}
	for i, entry := range entries {
		if err := entry.checkAs(files[i].Path); err != nil {
			return err
		}
		if entry.Type != TypeFile {
			return fmt.Errorf("what was written is no file: %w", ErrProtocol)
		}
	}
	return nil
}

// Remove removes what lies at a path; a link itself, not what it leads to. A
// directory that holds something is NotEmpty unless recursive. The working
// directory and what holds it is BadRequest.
func (c *Client) Remove(ctx context.Context, path string, recursive bool) (Removed, error) {
	var out Removed
	query := url.Values{"path": {path}, "recursive": {strconv.FormatBool(recursive)}}
	err := c.late(ctx, RouteRemove, query, nil, MaxReplyBody, &out)
	if err == nil && (out.Entries < 1 || out.Entries > 1 && !recursive) {
		err = fmt.Errorf("impossible number of entries removed: %w", ErrProtocol)
	}
	return out, wrap("remove", err)
}

// WriteArchive unpacks a tar archive, compressed or not, into a directory, which
// is made with its parents. Each file appears whole or not at all; what was
// unpacked before a refusal stays. Owners are the default user, or with
// keepOwners those of the archive, by number. A member that would lead out of the
// directory, or is a device, FIFO or anything else unknown, is UnsafeMember.
func (c *Client) WriteArchive(ctx context.Context, path string, gzip, keepOwners bool, tar io.Reader) (Unpacked, error) {
	var out Unpacked
	query := url.Values{"path": {path}, "gzip": {strconv.FormatBool(gzip)}, "keep_owners": {strconv.FormatBool(keepOwners)}}
	err := c.late(ctx, RouteWriteArchive, query, tar, MaxReplyBody, &out)
	if err == nil && (out.Entries < 0 || out.Entries > MaxMembers || out.Bytes < 0) {
		err = fmt.Errorf("impossible sums of an archive: %w", ErrProtocol)
	}
	return out, wrap("unpack archive", err)
}

// ReadArchive packs a directory, or one file, as a tar archive. after is the path,
// relative to the directory, of the last member that is not wanted. The body may
// break off; then it was no whole archive.
func (c *Client) ReadArchive(ctx context.Context, path string, gzip bool, after string) (io.ReadCloser, error) {
	query := url.Values{"path": {path}, "gzip": {strconv.FormatBool(gzip)}, "after": {after}}
	reply, err := c.do(ctx, RouteReadArchive, "", query, nil)
	if err != nil {
		return nil, wrap("pack archive", err)
	}
	return reply.Body, nil
}

// late is a call that is answered late.
func (c *Client) late(ctx context.Context, route string, query url.Values, body io.Reader, limit int64, out any) error {
	reply, err := c.do(ctx, route, "", query, body)
	if err != nil {
		return err
	}
	data, err := readLate(ctx, reply, limit)
	if err != nil {
		return err
	}
	var refusal Error
	if err := json.Unmarshal(data, &refusal); err != nil {
		return fmt.Errorf("reply is not what was asked for: %w", ErrProtocol)
	}
	if refusal.Code != "" {
		if refusal.Code.Status() == 0 {
			return fmt.Errorf("unknown refusal: %w", ErrProtocol)
		}
		return refusal.kept()
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("reply is not what was asked for: %w", ErrProtocol)
	}
	return nil
}

// readLate reads a late reply without its signs of life.
func readLate(ctx context.Context, reply *http.Response, limit int64) (data []byte, err error) {
	defer func() { drop(reply, err) }()
	in := movedReader{from: reply.Body}
	in.moved, _ = ctx.Value(movedKey{}).(func())
	var first [1]byte
	for range MaxSigns + 1 {
		if _, err := io.ReadFull(in, first[:]); err == io.EOF { //nolint:errorlint // a clean end, and nothing said
			return nil, fmt.Errorf("reply is empty: %w", ErrProtocol)
		} else if err != nil {
			return nil, err
		}
		if first[0] == ' ' {
			continue
		}
		data, err := io.ReadAll(io.LimitReader(in, limit))
		if int64(len(data)) == limit {
			err = fmt.Errorf("reply is over %d bytes: %w", limit, ErrProtocol)
		}
		return append(first[:], data...), err
	}
	return nil, fmt.Errorf("over %d signs of life: %w", MaxSigns, ErrProtocol)
}

type movedReader struct {
	from  io.Reader
	moved func()
}

func (r movedReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if n > 0 && r.moved != nil {
		r.moved()
	}
	return n, err
}

// kept is a refusal as the client hands it on.
func (e *Error) kept() *Error {
	return &Error{Code: e.Code, Detail: e.Detail[:min(len(e.Detail), MaxDetail)]}
}
