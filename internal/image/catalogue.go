package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/microvmd/microvm/internal/fault"
)

// maxNamed bounds how many images a "not found" names.
const maxNamed = 10

// Catalogue is the folder of a node's images: <dir>/<id>/image.json beside
// <dir>/<id>/rootfs.<format>. The folder is read at each call, so an image that
// was put there (by a rename: what lies there half-made is broken) is seen at
// once. All methods may be called at once.
//
// What the host boots for strangers must be what was built: an image whose
// folder or files another user than root owns, or may write, is refused.
//
// A digest is computed at the first use of a file by this process, and again
// when the file's device, inode, size, mtime or ctime changed. ctime is the
// reason that this is enough: nobody can set it back. Listing computes none.
type Catalogue struct {
	dir   string
	owner int    // uid that must own everything; 0 but in tests
	arch  string // runtime.GOARCH but in tests

	mu       sync.Mutex
	verified map[string]stamp         // guarded by mu: by id, the file whose digest was right
	hashing  map[string]chan struct{} // guarded by mu: by id, closed when the one who computes is done
}

// stamp tells whether a file is still the one that was looked at.
type stamp struct {
	device, inode uint64
	size          int64
	mtime, ctime  syscall.Timespec
	digest        string // what image.json wanted then
}

// Broken is an image that is there and cannot be used.
type Broken struct {
	ID  string // the folder's name, as it is
	Err error
}

func (b Broken) Error() string { return fmt.Sprintf("image %q: %v", b.ID, b.Err) }
func (b Broken) Unwrap() error { return b.Err }

// Open returns the catalogue of a folder. The folder need not be there yet.
func Open(dir string) *Catalogue {
	return &Catalogue{
		dir: dir, owner: 0, arch: runtime.GOARCH,
		verified: map[string]stamp{}, hashing: map[string]chan struct{}{},
	}
}

// ValidID says whether id can name an image: 1 to 64 ASCII letters, digits, '-'
// and '.', the first a letter or a digit. Such an id is one plain file name.
func ValidID(id string) bool {
	if len(id) < 1 || len(id) > 64 {
		return false
	}
	for i, c := range []byte(id) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && (i == 0 || c != '-' && c != '.') {
			return false
		}
	}
	return true
}

// Image finds an image by id and makes sure that its file has the digest that
// its metadata says (the first time: see Catalogue). fault.ImageNotFound says
// what there is. A broken image is a fault.InternalError whose cause says why.
func (c *Catalogue) Image(ctx context.Context, id string) (Image, error) {
	img, now, err := c.find(ctx, id)
	if err != nil {
		return Image{}, err
	}
	if err := c.verifyOnce(ctx, img, now); err != nil {
		return Image{}, c.unusable(ctx, id, err)
	}
	return img, nil
}

// Verify computes the digest of an image's file now, whatever was known of it.
func (c *Catalogue) Verify(ctx context.Context, id string) error {
	img, now, err := c.find(ctx, id)
	if err != nil {
		return err
	}
	c.mu.Lock()
	delete(c.verified, id)
	c.mu.Unlock()
	if err := c.verifyOnce(ctx, img, now); err != nil {
		return c.unusable(ctx, id, err)
	}
	return nil
}

// Images returns the images that can be used, in order of id. It computes no
// digests. What is there and cannot be used is in Broken.
func (c *Catalogue) Images(ctx context.Context) ([]Image, error) {
	images, _, err := c.scan(ctx)
	return images, err
}

// Broken returns what lies in the folder and cannot be used, in order of id, for
// an operator.
func (c *Catalogue) Broken(ctx context.Context) ([]Broken, error) {
	_, broken, err := c.scan(ctx)
	return broken, err
}

func (c *Catalogue) scan(ctx context.Context) (images []Image, broken []Broken, err error) {
	entries, err := os.ReadDir(c.dir) // sorted by name
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("list images: %w", err)
	}
	for _, entry := range entries {
		if err := ctx.Err(); err != nil {
			return nil, nil, fmt.Errorf("list images: %w", err)
		}
		id := entry.Name()
		if strings.HasPrefix(id, ".") {
			continue // a draft that will be renamed
		}
		img, _, err := c.load(id)
		if err != nil {
			broken = append(broken, Broken{ID: id, Err: err})
			continue
		}
		images = append(images, img)
	}
	return images, broken, nil
}

// find loads an image or says why not.
func (c *Catalogue) find(ctx context.Context, id string) (Image, stamp, error) {
	if !ValidID(id) {
		// Before the disk is touched; %.70q because it may be of any length.
		return Image{}, stamp{}, c.notFound(ctx, "%.70q is no image id (1 to 64 letters, digits, '-' and '.')", id)
	}
	if err := ctx.Err(); err != nil {
		return Image{}, stamp{}, fmt.Errorf("find image %s: %w", id, err)
	}
	img, now, err := c.load(id)
	switch {
	case err == nil:
		return img, now, nil
	case errors.Is(err, errNoFolder):
		return Image{}, stamp{}, c.notFound(ctx, "there is no image %q on this node", id)
	}
	return Image{}, stamp{}, c.unusable(ctx, id, err)
}

func (c *Catalogue) notFound(ctx context.Context, format string, args ...any) error {
	images, _, err := c.scan(ctx)
	if err != nil {
		return err
	}
	names := make([]string, 0, maxNamed)
	for _, img := range images[:min(len(images), maxNamed)] {
		names = append(names, img.ID)
	}
	next := "it has none yet; build or download one, then `microvm images` lists it"
	if len(names) > 0 {
		next = "it has " + strings.Join(names, ", ")
		if len(images) > len(names) {
			next += fmt.Sprintf(" and %d more", len(images)-len(names))
		}
		next += "; `microvm images` lists them with their contents"
	}
	missing := fault.New(fault.ImageNotFound, format+"; %s", append(slices.Clone(args), next)...)
	missing.Param = "image"
	return missing
}

// unusable wraps why an image that is there cannot be used. What a caller gave
// up on is no fault of the image.
func (c *Catalogue) unusable(ctx context.Context, id string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("verify image %s: %w", id, err)
	}
	broken := fault.Wrap(Broken{ID: id, Err: err}, fault.InternalError,
		"image %q is on this node and cannot be used; its administrator finds the reason in the daemon's log, and building it again replaces it", id)
	broken.Param = "image"
	return broken
}

// verifyOnce computes the digest unless it is known. When several want the same
// one computes and the others wait.
func (c *Catalogue) verifyOnce(ctx context.Context, img Image, now stamp) error {
	for {
		c.mu.Lock()
		if c.verified[img.ID] == now {
			c.mu.Unlock()
			return nil
		}
		busy := c.hashing[img.ID]
		if busy == nil {
			break
		}
		c.mu.Unlock()
		select {
		case <-busy: // right, wrong or given up: look again
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	done := make(chan struct{})
	c.hashing[img.ID] = done
	c.mu.Unlock()

	err := c.hash(ctx, img, now)

	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.verified[img.ID] = now
	}
	delete(c.hashing, img.ID)
	close(done)
	return err
}
