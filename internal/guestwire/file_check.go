//go:build !guestd

package guestwire

import (
	"fmt"
	"path"
	"strings"
)

// check refuses an entry that no agent sends.
func (e Entry) check() error {
	if !cleanPath(e.Path) {
		return fmt.Errorf("entry has no absolute path in bounds: %w", ErrProtocol)
	}
	return e.checkRest()
}

// checkRest is check without the path.
func (e Entry) checkRest() error {
	switch e.Type {
	case TypeFile, TypeDirectory, TypeSymlink, TypeFIFO, TypeSocket, TypeDevice:
	default:
		return fmt.Errorf("entry has an unknown type: %w", ErrProtocol)
	}
	switch {
	case e.Size < 0:
		return fmt.Errorf("entry has a negative size: %w", ErrProtocol)
	case len(e.Mode) != 4 || strings.Trim(e.Mode, "01234567") != "":
		return fmt.Errorf("entry has no mode: %w", ErrProtocol)
	case e.Target != "" && e.Type != TypeSymlink, len(e.Target) > MaxTarget, strings.Contains(e.Target, "\x00"):
		return fmt.Errorf("entry has an impossible target: %w", ErrProtocol)
	}
	return nil
}

// checkAs is check of an entry that answers for the path asked.
func (e Entry) checkAs(asked string) error {
	if err := e.check(); err != nil {
		return err
	}
	if !answersFor(asked, e.Path) {
		return fmt.Errorf("entry of another path: %w", ErrProtocol)
	}
	return nil
}

// cleanPath says whether a path is absolute, in bounds, and names nothing twice.
func cleanPath(name string) bool {
	return path.IsAbs(name) && len(name) <= MaxEntryPath && path.Clean(name) == name && !strings.Contains(name, "\x00")
}

// answersFor says whether an absolute path can be what was asked for. Of a
// relative one only the end is known here, of one that goes up nothing.
func answersFor(asked, got string) bool {
	asked = path.Clean(asked)
	switch {
	case path.IsAbs(asked):
		return got == asked
	case asked == ".", asked == "..", strings.HasPrefix(asked, "../"):
		return true
	}
	return strings.HasSuffix(got, "/"+asked)
}

// beneath is the path of what lies in a directory, relative to it.
func beneath(dir, name string) (relative string, ok bool) {
	if dir != "/" {
		dir += "/"
	}
	relative, ok = strings.CutPrefix(name, dir)
	return relative, ok && relative != ""
}
