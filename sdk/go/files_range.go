package microvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// FileRange is a part of a file.
type FileRange struct {
	Offset int64 // of the first byte; negative: so many bytes before the end
	Length int64 // in bytes, at most; 0: to the end
	// ETag, where it is not "", is that of the file which the part must be of: then
	// another one at its path is ErrFileChanged.
	ETag string
}

// FilePart says what came of a file.
type FilePart struct {
	Offset  int64  // of the first byte that came
	Written int64  // bytes
	Size    int64  // of the whole file
	ETag    string // names the file as it was
}

// ErrFileChanged says that a file is another than the one whose ETag was sent.
var ErrFileChanged = errors.New("the file has changed")

// DownloadRange copies a part of a file to w. After an error what is known of the
// part comes back beside it: a next one, with its ETag, goes on behind it. A part
// that begins at or behind the end is range_invalid, but for offset 0, which any
// file has.
func (s *FileService) DownloadRange(ctx context.Context, sandbox, path string, r FileRange, w io.Writer) (*FilePart, error) {
	const verb = "download part of file"
	segment, err := fileSegment(sandbox, path)
	if err == nil && (r.Length < 0 || r.Offset < 0 && r.Length != 0) {
		err = errors.New("a length must be positive, and of the last bytes there is none")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", verb, err)
	}
	req := request{verb: verb, method: http.MethodGet, path: "/v1/sandboxes/" + segment + "/files", query: url.Values{"path": {path}}, long: true}
	req.header = r.header()
	var part *FilePart
	err = s.c.try(ctx, req, func(reply *http.Response) (err error) {
		if part, err = r.partOf(reply); err != nil {
			return err
		}
		part.Written, err = copyReply(w, reply)
		return err
	})
	return part, err
}

// header asks for the part; for a whole file it asks for no part, as an empty file
// has none.
func (r FileRange) header() map[string]string {
	if r.Offset == 0 && r.Length == 0 {
		return nil
	}
	text := "bytes=" + strconv.FormatInt(r.Offset, 10) // a minus is that of the last bytes
	if r.Offset >= 0 {
		text += "-"
		if r.Length > 0 {
			text += strconv.FormatInt(r.Offset+min(r.Length-1, 1<<63-1-r.Offset), 10)
		}
	}
	header := map[string]string{"Range": text}
	if r.ETag != "" {
		header["If-Range"] = r.ETag
	}
	return header
}

// partOf reads what a reply is of.
func (r FileRange) partOf(reply *http.Response) (*FilePart, error) {
	part := &FilePart{ETag: reply.Header.Get("ETag"), Size: reply.ContentLength}
	if r.ETag != "" && r.ETag != part.ETag {
		return nil, ErrFileChanged
	}
	if reply.StatusCode != http.StatusPartialContent {
		if r.header() != nil && reply.ContentLength != 0 {
			return nil, errors.New("the reply is not what the API promises: a whole file for a part")
		}
		return part, nil
	}
	var last int64
	text := strings.TrimSpace(reply.Header.Get("Content-Range"))
	if _, err := fmt.Sscanf(text, "bytes %d-%d/%d", &part.Offset, &last, &part.Size); err != nil || part.Offset < 0 || last < part.Offset || last >= part.Size {
		return nil, fmt.Errorf("the reply is not what the API promises: Content-Range is %.100q", text)
	}
	return part, nil
}
