//go:build !guestd

package guestwire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
)

// Watch calls each with what changes in a directory, or with recursive in all
// directories beneath it. The first call has the type NoChange and the directory's
// path: what changes from then on is told. Later ones of that type are signs of
// life, one each WatchSeconds. It returns nil when the directory itself is gone,
// else what ended it: the context, the connection, or an error of each.
func (c *Client) Watch(ctx context.Context, path string, recursive bool, each func(Change) error) error {
	query := url.Values{"path": {path}, "recursive": {strconv.FormatBool(recursive)}}
	reply, err := c.do(ctx, RouteWatch, "", query, nil)
	if err != nil {
		return wrap("watch", err)
	}
	defer func() { _ = reply.Body.Close() }() // the rest has no end to wait for
	lines := newLines(replyBody{reply.Body}, 2*MaxReplyBody)
	for dir := ""; ; {
		line, err := lines.next()
		if errors.Is(err, io.EOF) && dir != "" {
			return nil
		}
		if err != nil {
			return wrap("watch", noEOF(err))
		}
		change, err := readChange(line, dir)
		if err == nil && dir == "" {
			if dir = change.Path; change.Type != NoChange || !answersFor(path, dir) || !cleanPath(dir) {
				err = fmt.Errorf("watch of another path: %w", ErrProtocol)
			}
		}
		if err == nil {
			err = each(change)
		}
		if err != nil {
			return wrap("watch", err)
		}
	}
}

// readChange reads one line of a watch of dir, which is "" for the first.
func readChange(line []byte, dir string) (Change, error) {
	var change Change
	if len(line) == 0 && dir != "" {
		return change, nil
	}
	if err := json.Unmarshal(line, &change); err != nil {
		return change, fmt.Errorf("watch tells what is no change: %w", ErrProtocol)
	}
	if dir == "" {
		return change, nil
	}
	fine := false
	switch change.Type {
	case ChangeCreated, ChangeModified, ChangeRemoved:
		fine = within(dir, change.Path) && change.From == ""
	case ChangeMoved:
		fine = within(dir, change.Path) && within(dir, change.From)
	case ChangeOverflow:
		fine = change.Path == "" && change.From == "" && !change.IsDir
	}
	if !fine {
		return change, fmt.Errorf("watch tells an impossible change: %w", ErrProtocol)
	}
	return change, nil
}

// within says whether a path is that of a directory or of what lies beneath it.
func within(dir, name string) bool {
	_, ok := beneath(dir, name)
	return cleanPath(name) && (ok || name == dir)
}
