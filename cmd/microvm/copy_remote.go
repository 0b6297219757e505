package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path"
	"strconv"
	"strings"

	microvm "github.com/microvmd/microvm/sdk/go"
)

const (
	// listDepth and listLimit are the most that the API lists at once.
	listDepth = 32
	listLimit = 1000
)

// remote is the files of one sandbox.
type remote struct {
	client  *microvm.Client
	sandbox string // its id
}

// stat describes what lies at a path, or is nil where nothing does.
func (r *remote) stat(ctx context.Context, name string) (*microvm.File, error) {
	file, err := r.client.Files.Stat(ctx, r.sandbox, name)
	if microvm.HasCode(err, microvm.ErrorCodeFileNotFound) {
		return nil, nil //nolint:nilnil // nothing is there
	}
	return file, err
}

// found is what a copy meets at its end in a sandbox.
type found struct {
	path string        // absolute, where something is there
	file *microvm.File // nil where nothing is
	dir  bool          // it is a directory, or a link that leads to one
}

func (r *remote) find(ctx context.Context, name string) (found, error) {
	file, err := r.stat(ctx, name)
	if file == nil || err != nil {
		return found{path: name}, err
	}
	at := found{path: file.ExactPath(), file: file, dir: file.Type == microvm.FileTypeDirectory}
	if file.Type == microvm.FileTypeSymlink {
		// Only what goes into a link says where it leads.
		_, err := r.page(ctx, at.path, "", 1, 1)
		var refused *microvm.Error
		if err != nil && !errors.As(err, &refused) {
			return at, err
		}
		at.dir = err == nil
	}
	return at, nil
}

func (r *remote) page(ctx context.Context, dir, after string, depth, limit int) (*microvm.FileList, error) {
	params := microvm.ListFilesParams{Path: &dir, Depth: &depth, Limit: &limit}
	if after != "" {
		params.After = &after
	}
	return r.client.Files.List(ctx, r.sandbox, params)
}

// list yields all that lies beneath a directory, given by its absolute path, each
// directory right before what it holds.
func (r *remote) list(ctx context.Context, root string) iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) { r.listBeneath(ctx, root, "", yield) }
}

func (r *remote) listBeneath(ctx context.Context, root, prefix string, yield func(entry, error) bool) bool {
	dir := path.Join(root, prefix)
	for after := ""; ; {
		page, err := r.page(ctx, dir, after, listDepth, listLimit)
		if err != nil {
			return yield(entry{}, err)
		}
		for i := range page.Data {
			e, err := entryOf(&page.Data[i], dir)
			if err != nil {
				return yield(entry{}, err)
			}
			after = e.path
			deep := e.dir() && strings.Count(e.path, "/") == listDepth-1
			e.path = prefix + e.path
			if !yield(e, nil) || deep && !r.listBeneath(ctx, root, e.path+"/", yield) {
				return false
			}
		}
		if !page.HasMore || len(page.Data) == 0 {
			return true
		}
	}
}

// entryOf is a file as the API describes it, by its path below dir.
func entryOf(file *microvm.File, dir string) (entry, error) {
	name, ok := strings.CutPrefix(file.ExactPath(), strings.TrimSuffix(dir, "/")+"/")
	if !ok || !plainPath(name) {
		return entry{}, fmt.Errorf("the list of %s holds %s, which does not lie there", clean(dir), clean(file.ExactPath()))
	}
	return describe(file, name), nil
}

func describe(file *microvm.File, name string) entry {
	e := entry{path: name, kind: file.Type, size: file.Size, mode: permissions(file), modified: file.Modified, uid: int(file.UID), gid: int(file.GID)}
	e.target = file.ExactTarget()
	return e
}

func permissions(file *microvm.File) fs.FileMode {
	bits, _ := strconv.ParseUint(file.Mode, 8, 32) // 0 is what a guest gets that says nonsense
	return fs.FileMode(bits).Perm()
}

// unpack sends an archive into a directory.
func (r *remote) unpack(ctx context.Context, dir string, owners bool, tar io.Reader) error {
	params := microvm.WriteArchiveParams{Path: dir}
	if owners {
		params.Owners = new(microvm.WriteArchiveParamsOwnersKeep)
	}
	_, err := r.client.Files.UploadArchive(ctx, r.sandbox, params, tar)
	return err
}

// archiveStream is the archive of a directory on its way here.
type archiveStream struct {
	*io.PipeReader
	cancel context.CancelFunc
	over   chan struct{} // closed when nobody writes to it any more
}

// pack opens the archive of a directory, behind one of its members.
func (r *remote) pack(ctx context.Context, dir, after string) *archiveStream {
	ctx, cancel := context.WithCancel(ctx)
	out, in := io.Pipe()
	p := &archiveStream{out, cancel, make(chan struct{})}
	params := microvm.ReadArchiveParams{Path: dir}
	if after != "" {
		params.After = &after
	}
	go func() {
		defer close(p.over)
		_, err := r.client.Files.DownloadArchive(ctx, r.sandbox, params, in)
		_ = in.CloseWithError(err) // nil is the end
	}()
	return p
}

// Close ends it early, or at its end.
func (p *archiveStream) Close() error {
	p.cancel()
	err := p.PipeReader.Close()
	<-p.over
	return err
}
