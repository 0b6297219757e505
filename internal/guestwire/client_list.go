//go:build !guestd

package guestwire

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"strconv"
	"strings"
)

// List asks for what a directory holds.
type List struct {
	Path  string // a link at its end is followed
	Depth int    // 1..MaxDepth: 1 is what lies in it
	Limit int    // 1..MaxList
	After string // relative to Path: entries up to it are left out
}

// List lists a directory, each directory right before what it holds, names by
// their bytes (see ComparePaths). more says that entries follow after the last.
// Links are not followed. What is gone when its turn comes is left out.
func (c *Client) List(ctx context.Context, list List) (entries []Entry, more bool, err error) {
	query := url.Values{
		"path": {list.Path}, "depth": {strconv.Itoa(list.Depth)}, "limit": {strconv.Itoa(list.Limit)}, "after": {list.After},
	}
	reply, err := c.do(ctx, RouteList, "", query, nil)
	if err != nil {
		return nil, false, wrap("list directory", err)
	}
	defer func() { drop(reply, err) }()
	if list.After != "" {
		list.After = path.Clean(list.After)
	}
	entries, more, err = readList(io.LimitReader(replyBody{reply.Body}, MaxListBytes+2*MaxReplyBody), list)
	if err != nil {
		return nil, false, wrap("list directory", err)
	}
	return entries, more, nil
}

func readList(in io.Reader, list List) (entries []Entry, more bool, err error) {
	lines := newLines(in, MaxReplyBody)
	dir, err := readListed(lines, list.Path)
	if err != nil {
		return nil, false, err
	}
	last := list.After
	for {
		line, err := lines.next()
		if err != nil {
			return nil, false, noEOF(err)
		}
		var end ListEnd
		if err := json.Unmarshal(line, &end); err == nil && end.More != nil {
			if _, err := lines.next(); !errors.Is(err, io.EOF) {
				return nil, false, fmt.Errorf("list goes on after its end: %w", cmp.Or(err, ErrProtocol))
			}
			return entries, *end.More, nil
		}
		entry, name, err := readListEntry(line, dir, list.Depth)
		switch {
		case err != nil:
			return nil, false, err
		case last != "" && ComparePaths(name, last) <= 0:
			return nil, false, fmt.Errorf("list goes back: %w", ErrProtocol)
		case len(entries) == list.Limit:
			return nil, false, fmt.Errorf("list has over %d entries: %w", list.Limit, ErrProtocol)
		}
		entries, last = append(entries, entry), name
	}
}

// readListed reads the entry of the directory itself, and gives its path.
func readListed(lines lineReader, asked string) (string, error) {
	line, err := lines.next()
	if err != nil {
		return "", noEOF(err)
	}
	var dir Entry
	if err := json.Unmarshal(line, &dir); err != nil {
		return "", fmt.Errorf("list does not begin with its directory: %w", ErrProtocol)
	}
	if err := dir.checkAs(asked); err != nil {
		return "", err
	}
	if dir.Type != TypeDirectory {
		return "", fmt.Errorf("list of what is no directory: %w", ErrProtocol)
	}
	return dir.Path, nil
}

// readListEntry reads one entry, and gives its path relative to the directory.
func readListEntry(line []byte, dir string, depth int) (entry Entry, name string, err error) {
	if err := json.Unmarshal(line, &entry); err != nil {
		return entry, "", fmt.Errorf("list holds what is no entry: %w", ErrProtocol)
	}
	if err := entry.check(); err != nil {
		return entry, "", err
	}
	name, ok := beneath(dir, entry.Path)
	if !ok || strings.Count(name, "/") >= depth {
		return entry, "", fmt.Errorf("list holds what lies elsewhere: %w", ErrProtocol)
	}
	return entry, name, nil
}

// noEOF is for an end where more must come.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("reply has no end: %w", ErrProtocol)
	}
	return err
}
