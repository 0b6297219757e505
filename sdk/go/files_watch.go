package microvm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
)

// FileEventType says what a FileEvent tells.
type FileEventType string

// The events of a watch.
const (
	FileWatching FileEventType = "watching" // the first one: what changes from now on is told
	FileCreated  FileEventType = "created"
	FileModified FileEventType = "modified"
	FileGone     FileEventType = "removed"
	FileMoved    FileEventType = "moved"    // From is its path before
	FileMissed   FileEventType = "overflow" // changes were missed: list anew
)

// FileEvent is one event of a watch.
type FileEvent struct {
	Type      FileEventType
	Path      string // absolute, byte for byte; "" of FileWatching and FileMissed
	From      string // of what was moved, byte for byte
	Directory bool   // whether it is one
}

// Watch iterates over the changes of a directory as they happen, until the caller
// breaks off or the iteration yields an error: that is its last. It is none of the
// calls that connect again by themselves, because changes would be missed: watch
// again and then list. An open watch keeps the sandbox from being idle.
func (s *FileService) Watch(ctx context.Context, sandbox string, params WatchFilesParams) iter.Seq2[FileEvent, error] {
	return func(yield func(FileEvent, error) bool) {
		const verb = "watch files"
		err := s.c.invalid
		segment := ""
		if err == nil {
			segment, err = fileSegment(sandbox, params.Path)
		}
		if err == nil {
			w := &fileWatch{c: s.c, path: "/v1/sandboxes/" + segment + "/files/watch", query: url.Values{"path": {params.Path}}, yield: yield}
			if params.Recursive != nil && *params.Recursive {
				w.query.Set("recursive", "true")
			}
			err = w.run(ctx)
		}
		if err != nil && !errors.Is(err, errLeft) {
			yield(FileEvent{}, fmt.Errorf("%s: %w", verb, err))
		}
	}
}

// fileWatch is one iteration. Only its caller's goroutine touches it.
type fileWatch struct {
	c     *Client
	path  string
	query url.Values
	yield func(FileEvent, error) bool
}

func (w *fileWatch) run(ctx context.Context) error {
	r := request{path: w.path, query: w.query, header: map[string]string{}}
	begun := func() error { return w.hand(FileEvent{Type: FileWatching}) }
	err := w.c.listen(ctx, r, begun, func(name string, data []byte) (over bool, err error) {
		return false, w.take(FileEventType(name), data)
	})
	if err != nil && !errors.Is(err, errLeft) && ctx.Err() != nil {
		return contextError(ctx, err)
	}
	return err
}

// take hands out one event. Those of newer nodes that this client does not know
// are passed over.
func (w *fileWatch) take(kind FileEventType, data []byte) error {
	switch kind {
	case FileCreated, FileModified, FileGone, FileMoved:
		var e FileChange
		if json.Unmarshal(data, &e) != nil || e.Path == "" || (e.From != nil) != (kind == FileMoved) {
			return notPromised(EventType(kind))
		}
		event := FileEvent{Type: kind, Path: exact(e.Path, e.PathBase64), Directory: e.Directory}
		if e.From != nil {
			event.From = exact(*e.From, e.FromBase64)
		}
		return w.hand(event)
	case FileMissed:
		return w.hand(FileEvent{Type: kind})
	case "error":
		var e FileWatchError
		if json.Unmarshal(data, &e) != nil {
			return notPromised(EventType(kind))
		}
		return &Error{Type: typeOfWatchError(e.Code), Code: e.Code, Message: e.Message, Status: http.StatusOK}
	default:
		return nil
	}
}

// typeOfWatchError is the type of the codes with which a watch ends.
func typeOfWatchError(code ErrorCode) ErrorType {
	if code == ErrorCodeSandboxNotRunning || code == ErrorCodeFileNotFound {
		return ErrorTypeInvalidRequestError
	}
	return ErrorTypeAPIError
}

func (w *fileWatch) hand(e FileEvent) error {
	if !w.yield(e, nil) {
		return errLeft
	}
	return nil
}
