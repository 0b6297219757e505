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
// Digests are not computed here: whoever places an image checks its bytes
// (microvm setup, machine start), and microvm doctor checks them again. Hashing
// at a first create would cost it seconds, to find only what root changed.
type Catalogue struct {
	dir    string
	bounds Bounds
	owner  int                     // uid that must own everything; 0 but in tests
	arch   string                  // runtime.GOARCH but in tests
	before func(step string) error // called before each effect of an import or a removal; nil but in tests

	importing sync.Mutex // held by the one import at a time

	mu    sync.Mutex        // held while a name is looked up for a use, placed or removed
	uses  map[string]*users // guarded by mu; by id
	paths map[string]int    // guarded by mu; uses by file
	stale map[string]bool   // guarded by mu; files that were replaced while somebody held them
}

// Broken is an image that is there and cannot be used.
type Broken struct {
	ID  string // the folder's name, as it is
	Err error
}

func (b Broken) Error() string { return fmt.Sprintf("image %q: %v", b.ID, b.Err) }
func (b Broken) Unwrap() error { return b.Err }

// Open returns the catalogue of a folder, which takes trees within bounds. The
// folder need not be there yet. One catalogue at a time may import into a folder
// and remove from it: the state directory's lock sees to that.
func Open(dir string, bounds Bounds) *Catalogue {
	return &Catalogue{
		dir: dir, bounds: bounds, owner: 0, arch: runtime.GOARCH,
		uses: map[string]*users{}, paths: map[string]int{}, stale: map[string]bool{},
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

// Image finds an image by id. fault.ImageNotFound says what there is. A broken
// image is a fault.InternalError whose cause says why.
func (c *Catalogue) Image(ctx context.Context, id string) (Image, error) {
	if !ValidID(id) {
		// Before the disk is touched; %.70q because it may be of any length.
		return Image{}, c.notFound(ctx, "%.70q is no image id (1 to 64 letters, digits, '-' and '.')", id)
	}
	img, err := c.load(id)
	switch {
	case err == nil:
		return img, nil
	case errors.Is(err, errNoFolder):
		return Image{}, c.notFound(ctx, "there is no image %q on this node", id)
	}
	broken := fault.Wrap(Broken{ID: id, Err: err}, fault.InternalError,
		"image %q is on this node and cannot be used; its administrator finds the reason in the daemon's log, and building it again replaces it", id)
	broken.Param = "image"
	return Image{}, broken
}

// Images returns the images that can be used, in order of id. What
// is there and cannot be used is in Broken.
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
		img, err := c.load(id)
		if err != nil {
			broken = append(broken, Broken{ID: id, Err: err})
			continue
		}
		images = append(images, img)
	}
	return images, broken, nil
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
	next += "; on the node, `microvm up --image NAME` brings those that come with Microvm"
	missing := fault.New(fault.ImageNotFound, format+"; %s", append(slices.Clone(args), next)...)
	missing.Param = "image"
	return missing
}
