package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
)

// WriteBatch writes files, all of them or none. They are checked as a whole
// before the guest hears of one.
func (f *Files) WriteBatch(ctx context.Context, id string, files []guestwire.NewFile) (entries []guestwire.Entry, err error) {
	session, err := f.sandboxes.Use(ctx, id)
	if err != nil {
		return nil, err
	}
	ctx, guard := f.guard(ctx, session)
	defer guard.stop()
	if err := checkBatch(session.workdir(), files); err != nil {
		return nil, err
	}
	entries, err = session.Agent().WriteFiles(ctx, files)
	if err != nil {
		return nil, batchRefusals(session.workdir(), files, err).fault(session, err)
	}
	return entries, nil
}

// batchRefusals names the file that the guest refuses, as far as it says so.
func batchRefusals(workdir string, files []guestwire.NewFile, err error) refusals {
	var refusal *guestwire.Error
	if !errors.As(err, &refusal) {
		return nil
	}
	name := "files"
	kept := func(path string) string { return path[:min(len(path), guestwire.MaxDetail)] } // of a detail
	for i, file := range files {
		if refusal.Detail == kept(file.Path) || refusal.Detail == kept(absolute(workdir, file.Path)) {
			name = fmt.Sprintf("files[%d].path", i)
			break
		}
	}
	about := fault.Error{
		Code: fault.ParameterInvalid, Param: name,
		Message: "the guest cannot put a file there: it is no regular file's place, or what is above it is no directory, or it refuses; nothing of the batch was written",
	}
	return refusals{guestwire.NotAFile: about, guestwire.PermissionDenied: about, guestwire.BadRequest: about, guestwire.Exists: about, guestwire.FileNotFound: about}
}

func checkBatch(workdir string, files []guestwire.NewFile) error {
	if len(files) == 0 || len(files) > guestwire.MaxBatch {
		return fault.Param("files", "files must have 1 to %d items", guestwire.MaxBatch)
	}
	places := make([]batchPlace, len(files))
	for i, file := range files {
		name := fmt.Sprintf("files[%d]", i)
		if err := checkPath(name+".path", file.Path); err != nil {
			return err
		}
		if err := checkMode(name+".mode", file.Mode); err != nil {
			return err
		}
		places[i] = batchPlace{i, absolute(workdir, file.Path)}
		if strings.HasSuffix(file.Path, "/") || places[i].path == "/" {
			return fault.Param(name+".path", "%s.path names a directory; it must name a file", name)
		}
	}
	return checkPlaces(places)
}

// batchPlace is where one file of a batch goes.
type batchPlace struct {
	index int
	path  string
}

// checkPlaces refuses files of which one stands in another's way. In an order in
// which a slash comes before everything else what lies below a path follows it.
func checkPlaces(places []batchPlace) error {
	key := func(p batchPlace) string { return strings.ReplaceAll(p.path, "/", "\x00") }
	slices.SortFunc(places, func(a, b batchPlace) int {
		return cmp.Or(cmp.Compare(key(a), key(b)), cmp.Compare(a.index, b.index))
	})
	for i, next := range places[1:] {
		before := places[i]
		name := fmt.Sprintf("files[%d].path", next.index)
		switch {
		case next.path == before.path:
			return fault.Param(name, "%s is the same place as files[%d].path; send each file once", name, before.index)
		case strings.HasPrefix(next.path, before.path+"/"):
			return fault.Param(name, "%s lies below files[%d].path, which is a file; move one of the two", name, before.index)
		}
	}
	return nil
}
