package microvm

import (
	"context"
	"net/http"
)

// ImageService says what a sandbox can start from.
type ImageService struct{ c *Client }

// List gets all images of the node, by id, in one page.
func (s *ImageService) List(ctx context.Context) (*ImageList, error) {
	out := new(ImageList)
	if err := s.c.call(ctx, request{verb: "list images", method: http.MethodGet, path: "/v1/images"}, out); err != nil {
		return nil, err
	}
	return out, nil
}
