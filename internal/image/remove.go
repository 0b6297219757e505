package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Remove removes an imported image that nobody holds, and returns what it was.
// One that is held is a fault.ImageInUse whose cause is an *InUse; one that no
// import brought is a fault.Forbidden.
func (c *Catalogue) Remove(ctx context.Context, id string) (Image, error) {
	if !ValidID(id) {
		return c.Image(ctx, id) // which says so
	}
	img, gone, err := c.takeAway(ctx, id)
	if err != nil {
		return Image{}, err
	}
	if err := c.do("delete", func() error { return os.RemoveAll(gone) }); err != nil {
		return Image{}, fmt.Errorf("remove image: %w", err) // the next start removes the rest
	}
	return img, nil
}

// takeAway takes an image from its name, as a whole.
func (c *Catalogue) takeAway(ctx context.Context, id string) (img Image, gone string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	img, err = c.imported(id)
	if errors.Is(err, errNoFolder) {
		_, err = c.Image(ctx, id) // which says what there is
	}
	if err == nil {
		err = c.unused(id)
	}
	if err != nil {
		return Image{}, "", err
	}
	err = c.do("take away", func() error {
		if gone, err = os.MkdirTemp(c.dir, removedPrefix); err != nil {
			return err
		}
		return errors.Join(os.Rename(filepath.Join(c.dir, id), filepath.Join(gone, id)), syncFolder(c.dir))
	})
	return img, gone, wrap("remove image", err)
}

// Sweep removes what a daemon that was killed left half-made, half-removed or
// replaced. It is for the start: nobody holds an image yet, and microVMs that run
// have links of their own.
func (c *Catalogue) Sweep() error {
	if err := c.sweepDrafts(); err != nil {
		return fmt.Errorf("sweep images: %w", err)
	}
	entries, err := os.ReadDir(c.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("sweep images: %w", err)
	}
	for _, entry := range entries {
		if !ValidID(entry.Name()) {
			continue
		}
		img, err := c.imported(entry.Name())
		if err != nil { // set-up may have taken the place of one that was
			img, err = c.load(entry.Name())
		}
		if err != nil {
			continue // broken: it is for its administrator
		}
		if err := c.sweepFiles(img); err != nil {
			return fmt.Errorf("sweep image %q: %w", img.ID, err)
		}
	}
	return nil
}

// sweepFiles removes the files of an image's folder that the image is not made of.
func (c *Catalogue) sweepFiles(img Image) error {
	folder := filepath.Dir(img.Path)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if name := entry.Name(); strings.HasPrefix(name, rootPrefix) && name != filepath.Base(img.Path) {
			if err := c.do("sweep file", func() error { return os.Remove(filepath.Join(folder, name)) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// sweepDrafts removes folders of imports and removals that are not going on.
func (c *Catalogue) sweepDrafts() error {
	entries, err := os.ReadDir(c.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), draftPrefix) || strings.HasPrefix(entry.Name(), removedPrefix) {
			if err := os.RemoveAll(filepath.Join(c.dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
