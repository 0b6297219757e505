package sandbox

import (
	"context"
	"errors"
	"io"

	"github.com/microvmd/microvm/internal/image"
)

// Catalogue is where a node's images lie.
type Catalogue interface {
	Images(ctx context.Context) ([]image.Image, error)
	Import(ctx context.Context, spec image.Spec, tree io.Reader) (image.Brought, error)
	Remove(ctx context.Context, id string) (image.Image, error)
}

// NodeImages brings, lists and removes images of a node, with the templates that
// hang on them.
type NodeImages struct {
	Catalogue
	templates *templates
}

// NewImages returns the images of a manager's node. The catalogue is the one that
// the manager uses.
func NewImages(m *Manager, c Catalogue) *NodeImages {
	return &NodeImages{Catalogue: c, templates: m.templates}
}

// Import makes an image of a tree. The templates of one that it replaces go: none
// is found any more.
func (n *NodeImages) Import(ctx context.Context, spec image.Spec, tree io.Reader) (image.Brought, error) {
	brought, err := n.Catalogue.Import(ctx, spec, tree)
	if old := brought.Replaced; old != nil && old.Digest != brought.Digest {
		n.templates.dropImage(ctx, *old)
	}
	return brought, err
}

// Remove removes an image that no sandbox uses, and its templates. One that is in
// the making is given up for it.
func (n *NodeImages) Remove(ctx context.Context, id string) (image.Image, error) {
	for {
		img, err := n.Catalogue.Remove(ctx, id)
		var by *image.InUse
		if errors.As(err, &by) && by.Sandboxes == 0 {
			if err := n.templates.yield(ctx); err != nil {
				return image.Image{}, err
			}
			continue
		}
		if err == nil {
			n.templates.dropImage(ctx, img)
		}
		return img, err
	}
}
