package image

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/microvmd/microvm/internal/fault"
)

// By says who uses an image.
type By int

// Who uses images.
const (
	BySandbox  By = iota
	ByTemplate    // a microVM that becomes one; it can be given up
)

// users counts those who hold an image.
type users [2]int

// Use is an image that somebody holds. Until it is released the image is not
// removed, and what it was when it was taken stays under its Path.
type Use struct {
	Image
	from *Catalogue // nil holds nothing
	by   By
	once sync.Once
}

// InUse is the cause of a fault.ImageInUse.
type InUse struct{ Sandboxes, Templates int }

func (e *InUse) Error() string {
	return fmt.Sprintf("%d sandboxes and %d microVMs that become templates hold it", e.Sandboxes, e.Templates)
}

// Use finds an image as Image does, and holds it. Nothing can come between: it
// is not removed from when it was found on.
func (c *Catalogue) Use(ctx context.Context, id string, by By) (*Use, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	img, err := c.Image(ctx, id)
	if err != nil {
		return nil, err
	}
	return c.hold(img, by), nil
}

// Hold holds an image of which only the name matters: that of a sandbox whose
// microVM runs and has the file open. The image need not be there.
func (c *Catalogue) Hold(id string) *Use {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hold(Image{ID: id}, BySandbox)
}

// Also holds the same image once more, for somebody else: as it is, and not what
// may have replaced it since.
func (u *Use) Also(by By) *Use {
	if u.from == nil {
		return &Use{Image: u.Image}
	}
	u.from.mu.Lock()
	defer u.from.mu.Unlock()
	return u.from.hold(u.Image, by)
}

// hold counts a use. c.mu is held.
func (c *Catalogue) hold(img Image, by By) *Use {
	if c.uses[img.ID] == nil {
		c.uses[img.ID] = &users{}
	}
	c.uses[img.ID][by]++
	c.paths[img.Path]++
	return &Use{Image: img, from: c, by: by}
}

// Release lets go of the image. Only the first call does something.
func (u *Use) Release() {
	if u.from == nil {
		return
	}
	u.once.Do(func() {
		c := u.from
		c.mu.Lock()
		defer c.mu.Unlock()
		count := c.uses[u.ID]
		if count[u.by]--; *count == (users{}) {
			delete(c.uses, u.ID)
		}
		if c.paths[u.Path]--; c.paths[u.Path] == 0 {
			delete(c.paths, u.Path)
			if c.stale[u.Path] {
				delete(c.stale, u.Path)
				_ = os.Remove(u.Path) // what does not work now is swept at the next start
			}
		}
	})
}

// unused is nil when nobody holds an image. c.mu is held.
func (c *Catalogue) unused(id string) error {
	count := c.uses[id]
	if count == nil {
		return nil
	}
	by := &InUse{Sandboxes: count[BySandbox], Templates: count[ByTemplate]}
	who := fmt.Sprintf("%d sandboxes use", by.Sandboxes)
	switch by.Sandboxes {
	case 1:
		who = "1 sandbox uses"
	case 0:
		who = "the making of a template uses"
	}
	busy := fault.Wrap(by, fault.ImageInUse, "%s image %q; delete what uses it, or wait for its end, and try again", who, id)
	busy.Param = "image"
	return busy
}
