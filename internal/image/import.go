package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/microvmd/microvm/internal/fault"
)

// Names of folders that are no images: a scan passes over them, and sweep removes
// them.
const (
	draftPrefix   = ".import-"
	removedPrefix = ".removed-"
)

// retryImport is how soon to try again while another import is under way.
const retryImport = 10 * time.Second

// Brought is what an import did.
type Brought struct {
	Image
	New      bool   // false: the image was there already, the very same
	Replaced *Image // whose place it took, or nil
}

// Import makes an image of a tree, a tar that may be compressed with gzip. Nobody
// sees it before it is whole, checked and on disk. What goes wrong, a power cut
// included, leaves at most a draft, which the next import or start removes.
//
// A member that no image can have is a fault.ImageInvalid that names it. An id
// that another image has is a fault.ResourceAlreadyExists unless that one was
// imported and is to be replaced: who holds that one keeps it as it is.
func (c *Catalogue) Import(ctx context.Context, spec Spec, tree io.Reader) (Brought, error) {
	spec, err := spec.fill()
	if err != nil {
		return Brought{}, err
	}
	// One at a time: each may fill the disk, and holds the names of its tree.
	if !c.importing.TryLock() {
		busy := fault.New(fault.NodeAtCapacity, "another import is under way on this node; try again when it is over")
		busy.RetryAfter = retryImport
		return Brought{}, busy
	}
	defer c.importing.Unlock()
	if err := c.prepare(spec); err != nil { // before anybody sends a gigabyte
		return Brought{}, wrap("import image", err)
	}
	draft, err := c.draft()
	if err != nil {
		return Brought{}, fmt.Errorf("import image: %w", err)
	}
	brought, err := c.importInto(ctx, draft, spec, tree)
	if cleanup := os.RemoveAll(draft); err == nil && cleanup != nil {
		err = fmt.Errorf("import image: remove draft: %w", cleanup)
	}
	return brought, err
}

func (c *Catalogue) importInto(ctx context.Context, draft string, spec Spec, tree io.Reader) (Brought, error) {
	img, err := c.write(ctx, draft, spec, tree)
	if err == nil {
		err = c.writeMetadata(draft, img)
	}
	if err == nil {
		err = c.do("sync draft", func() error { return syncFolder(draft) })
	}
	if err != nil {
		return Brought{}, wrap("import image", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	brought, err := c.publish(draft, img, spec.Replace)
	return brought, wrap("import image", err)
}

// wrap names what was done, but for a fault, which says it itself.
func wrap(verb string, err error) error {
	var known *fault.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	return fmt.Errorf("%s: %w", verb, err)
}

// prepare refuses an id that no import can have, and removes what an earlier one
// left.
func (c *Catalogue) prepare(spec Spec) error {
	c.mu.Lock() // a removal that is under way has a folder there, too
	defer c.mu.Unlock()
	_, err := c.imported(spec.ID)
	if err != nil && !errors.Is(err, errNoFolder) {
		if fault.Is(err, fault.Forbidden) && !spec.Replace {
			return exists(spec.ID, "use another name")
		}
		return err
	}
	return c.sweepDrafts()
}

// imported reads what an image says of itself, whatever state its file is in. One
// that no import brought is a fault.Forbidden.
func (c *Catalogue) imported(id string) (Image, error) {
	folder := filepath.Join(c.dir, id)
	if _, err := os.Lstat(folder); errors.Is(err, fs.ErrNotExist) {
		return Image{}, errNoFolder
	}
	img, err := c.metadata(filepath.Join(folder, "image.json"))
	if err == nil {
		err = c.checkMetadata(img, id)
	}
	if err != nil || img.Source != Imported {
		own := fault.Wrap(err, fault.Forbidden, "image %q was not imported: what put it on this node (microvm setup, or its administrator by hand) replaces or removes it", id)
		own.Param = "image"
		return Image{}, own
	}
	img.Path = filepath.Join(folder, img.file())
	return img, nil
}

func exists(id, next string) error {
	there := fault.New(fault.ResourceAlreadyExists, "this node has another image %q; %s", id, next)
	there.Param = "name"
	return there
}

// draft makes the folder of an image that nobody sees yet.
func (c *Catalogue) draft() (draft string, err error) {
	err = c.do("make draft", func() error {
		if err := os.MkdirAll(c.dir, 0o755); err != nil {
			return err
		}
		draft, err = os.MkdirTemp(c.dir, draftPrefix)
		return err
	})
	if err == nil {
		err = os.Chmod(draft, 0o755)
	}
	return draft, err
}

// write writes the file system and says what image it makes.
func (c *Catalogue) write(ctx context.Context, draft string, spec Spec, tree io.Reader) (img Image, err error) {
	path := filepath.Join(draft, "rootfs")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return Image{}, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	var seen *checker
	err = c.do("write file system", func() error {
		seen, err = convert(ctx, tree, file, c.bounds, c.arch)
		return err
	})
	if err != nil {
		return Image{}, err
	}
	if img, err = spec.image(seen, c.arch); err != nil {
		return Image{}, err
	}
	if img.Digest, img.SizeBytes, err = digest(file); err != nil {
		return Image{}, err
	}
	img.Path = filepath.Join(draft, img.file())
	return img, c.do("sync file system", func() error {
		return errors.Join(file.Chmod(0o444), os.Rename(path, img.Path), file.Sync())
	})
}

// digest hashes a file as it is read back.
func digest(file *os.File) (sum string, size int64, err error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return "", 0, err
	}
	hash := sha256.New()
	size, err = io.Copy(hash, file)
	return "sha256:" + hex.EncodeToString(hash.Sum(nil)), size, err
}

func (c *Catalogue) writeMetadata(draft string, img Image) error {
	return c.do("write metadata", func() error {
		text, err := json.MarshalIndent(img, "", "  ")
		if err != nil {
			return err
		}
		file, err := os.OpenFile(filepath.Join(draft, "image.json"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = file.Write(append(text, '\n'))
		return errors.Join(err, file.Chmod(0o444), file.Sync(), file.Close())
	})
}

// publish makes a complete draft the image of its id. c.mu is held.
func (c *Catalogue) publish(draft string, img Image, replace bool) (Brought, error) {
	folder := filepath.Join(c.dir, img.ID)
	from := img.Path
	img.Path = filepath.Join(folder, img.file())
	old, err := c.imported(img.ID)
	switch {
	case errors.Is(err, errNoFolder):
		err = c.do("publish", func() error { return errors.Join(os.Rename(draft, folder), syncFolder(c.dir)) })
		return Brought{Image: img, New: true}, err
	case err != nil:
		return Brought{}, err
	case same(old, img) && c.whole(old):
		return Brought{Image: old}, nil
	case !replace && !same(old, img): // its own tree may mend it
		return Brought{}, exists(img.ID, "remove it first, use another name, or ask for its replacement")
	case old.Workdir != img.Workdir: // an adopted sandbox finds its own by the image's name
		if err := c.unused(img.ID); err != nil {
			return Brought{}, err
		}
	}
	// The file gets a name that nothing knows, unless it has it already; then one
	// rename makes that name the image's.
	err = c.do("place file", func() error { return errors.Join(os.Rename(from, img.Path), syncFolder(folder)) })
	if err == nil {
		err = c.do("publish", func() error {
			return errors.Join(os.Rename(filepath.Join(draft, "image.json"), filepath.Join(folder, "image.json")), syncFolder(folder))
		})
	}
	if err != nil {
		// Only what the image is not made of: the rename may have gone through.
		if now, nowErr := c.imported(img.ID); nowErr == nil && now.Path != img.Path && c.paths[img.Path] == 0 {
			_ = os.Remove(img.Path) // what does not work now is swept at the next start
		}
		return Brought{}, err
	}
	delete(c.stale, img.Path)
	if old.Path == img.Path {
		return Brought{Image: img, New: true, Replaced: &old}, nil
	}
	if c.paths[old.Path] > 0 {
		c.stale[old.Path] = true
		return Brought{Image: img, New: true, Replaced: &old}, nil
	}
	err = c.do("remove what was replaced", func() error { return os.Remove(old.Path) })
	if errors.Is(err, fs.ErrNotExist) { // it was damaged
		err = nil
	}
	return Brought{Image: img, New: true, Replaced: &old}, err
}

// same says whether two images are one: the same file, and all that is said of it.
func same(a, b Image) bool {
	if len(a.Env) == 0 && len(b.Env) == 0 {
		a.Env, b.Env = nil, nil
	}
	a.Path, b.Path = "", ""
	return reflect.DeepEqual(a, b)
}

// whole says whether an image's file is what it says. It may be damaged, and then
// the same tree mends it.
func (c *Catalogue) whole(img Image) bool {
	file, _, err := c.openOwned(img.Path)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }() // read only
	sum, size, err := digest(file)
	return err == nil && sum == img.Digest && size == img.SizeBytes
}

// do has one effect on the disk.
func (c *Catalogue) do(step string, effect func() error) error {
	if c.before != nil {
		if err := c.before(step); err != nil {
			return fmt.Errorf("%s: %w", step, err)
		}
	}
	if err := effect(); err != nil {
		return wrap(step, err)
	}
	return nil
}

func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
