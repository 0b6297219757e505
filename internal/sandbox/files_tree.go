package sandbox

import (
	"context"
	"path"
	"strings"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
)

// Stat says what is at a path, of a symlink the link itself.
func (f *Files) Stat(ctx context.Context, id, path string) (entry guestwire.Entry, err error) {
	if err := checkPath("path", path); err != nil {
		return entry, err
	}
	err = f.call(ctx, id, nil, func(ctx context.Context, agent *guestwire.Client) (err error) {
		entry, err = agent.Stat(ctx, path)
		return err
	})
	return entry, err
}

// List lists a directory. l.After may be absolute, too, as the entries are.
func (f *Files) List(ctx context.Context, id string, l guestwire.List) (entries []guestwire.Entry, more bool, err error) {
	if err := checkPath("path", l.Path); err != nil {
		return nil, false, err
	}
	if l.Depth < 1 || l.Depth > guestwire.MaxDepth {
		return nil, false, fault.Param("depth", "depth must be 1 to %d", guestwire.MaxDepth)
	}
	if l.Limit < 1 || l.Limit > guestwire.MaxList {
		return nil, false, fault.Param("limit", "limit must be 1 to %d", guestwire.MaxList)
	}
	session, err := f.sandboxes.Use(ctx, id)
	if err != nil {
		return nil, false, err
	}
	ctx, guard := f.guard(ctx, session)
	defer guard.stop()
	if l.After, err = below(session.workdir(), l.Path, l.After); err != nil {
		return nil, false, err
	}
	entries, more, err = session.Agent().List(ctx, l)
	if err != nil {
		return nil, false, refusals(nil).fault(session, err)
	}
	return entries, more, nil
}

// below is what after is relative to the directory dir. It is "" for "".
func below(workdir, dir, after string) (string, error) {
	if after == "" {
		return "", nil
	}
	relative := after
	if path.IsAbs(after) {
		var ok bool
		if relative, ok = strings.CutPrefix(after, strings.TrimSuffix(absolute(workdir, dir), "/")+"/"); !ok {
			return "", notBelow()
		}
	}
	if relative != path.Clean(relative) || relative == "." || relative == ".." || strings.HasPrefix(relative, "../") || path.IsAbs(relative) {
		return "", notBelow()
	}
	return relative, checkPath("after", relative)
}

func notBelow() error {
	return fault.Param("after", "after must be the path of an entry below path, absolute or relative to it, without '.', '..' and empty parts")
}

// MakeDir makes a directory and its missing parents. One that is there is fine.
func (f *Files) MakeDir(ctx context.Context, id, path string, mode uint32) (entry guestwire.Entry, err error) {
	if err := checkFile(path, mode); err != nil {
		return entry, err
	}
	special := refusals{guestwire.NotAFile: {Code: fault.ResourceAlreadyExists, Param: "path", Message: "something on the way to this path is no directory; choose another path"}}
	err = f.call(ctx, id, special, func(ctx context.Context, agent *guestwire.Client) (err error) {
		entry, err = agent.MakeDir(ctx, path, mode)
		return err
	})
	return entry, err
}

// moveRefusals has the names of the parameters of a move.
var moveRefusals = refusals{
	guestwire.FileNotFound:     {Code: fault.FileNotFound, Param: "from", Message: "nothing is at from, or the directory of to is not there; make it with POST .../dirs"},
	guestwire.NotAFile:         {Code: fault.ParameterInvalid, Param: "to", Message: "a directory cannot replace a file, nor a file a directory, and what is above a path must be one; remove what is at to, or choose another place"},
	guestwire.PermissionDenied: {Code: fault.ParameterInvalid, Param: "from", Message: "the guest refuses to move this; another path may do"},
	guestwire.BadRequest:       {Code: fault.ParameterInvalid, Param: "to", Message: "the guest refuses this move; to must not lie in from, and neither may be the root"},
	guestwire.Exists:           {Code: fault.ResourceAlreadyExists, Param: "to", Message: "something is at to already; remove it, send replace: true, or choose another place"},
	guestwire.NotEmpty:         {Code: fault.FileConflict, Param: "to", Message: "to is a directory that has entries; remove it first, or choose another place"},
	guestwire.OtherDisk:        {Code: fault.FileConflict, Param: "to", Message: "from and to lie on two file systems of the guest; copy the file and remove the first one"},
}

// Move renames what is at a path.
func (f *Files) Move(ctx context.Context, id string, move guestwire.Move) (entry guestwire.Entry, err error) {
	if err := checkPath("from", move.From); err != nil {
		return entry, err
	}
	if err := checkPath("to", move.To); err != nil {
		return entry, err
	}
	err = f.call(ctx, id, moveRefusals, func(ctx context.Context, agent *guestwire.Client) (err error) {
		entry, err = agent.Move(ctx, move)
		return err
	})
	return entry, err
}

// Remove removes what is at a path; a directory that has entries only where
// recursive says so.
func (f *Files) Remove(ctx context.Context, id, path string, recursive bool) (removed guestwire.Removed, err error) {
	if err := checkPath("path", path); err != nil {
		return removed, err
	}
	special := refusals{
		guestwire.NotEmpty:   {Code: fault.FileConflict, Param: "path", Message: "path is a directory that has entries; send recursive=true to remove them, too"},
		guestwire.BadRequest: {Code: fault.ParameterInvalid, Param: "path", Message: "path is the root, the working directory or above it, which stay; name what is in it"},
	}
	err = f.call(ctx, id, special, func(ctx context.Context, agent *guestwire.Client) (err error) {
		removed, err = agent.Remove(ctx, path, recursive)
		return err
	})
	return removed, err
}
