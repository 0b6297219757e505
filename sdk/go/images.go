package microvm

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// ImageService says what a sandbox can start from, and brings and removes that.
type ImageService struct{ c *Client }

// List gets all images of the node, by id, in one page.
func (s *ImageService) List(ctx context.Context) (*ImageList, error) {
	out := new(ImageList)
	if err := s.c.call(ctx, request{verb: "list images", method: http.MethodGet, path: "/v1/images"}, out); err != nil {
		return nil, err
	}
	return out, nil
}

// ImageImport says what an image is to be, beyond its tree. Only Name is required.
type ImageImport struct {
	Name            string            // the image's id
	User            string            // who runs executions; in the tree's /etc/passwd; "" is root
	Workdir         string            // where executions start; "" is /workspace
	Env             map[string]string // of all executions; no secrets
	Language        string            // shown, and nothing else
	LanguageVersion string            // shown, and nothing else
	Replace         bool              // take the place of an imported image of this name
}

// Import makes an image of the tar of a root tree, which may be compressed with
// gzip. A member that no image can have is image_invalid, and its name is in the
// message. It does not close tree, and is not repeated once a byte was sent: the
// same import again is no error.
func (s *ImageService) Import(ctx context.Context, spec ImageImport, tree io.Reader) (*Image, error) {
	const verb = "import image"
	query := url.Values{}
	for name, value := range map[string]string{
		"name": spec.Name, "user": spec.User, "workdir": spec.Workdir, "language": spec.Language, "language_version": spec.LanguageVersion,
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if len(spec.Env) > 0 {
		env, err := json.Marshal(spec.Env)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", verb, err)
		}
		query.Set("env", string(env))
	}
	if spec.Replace {
		query.Set("replace", "true")
	}
	out := new(Image)
	r := request{verb: verb, method: http.MethodPost, path: "/v1/images", query: query, stream: tree, size: sizeOf(tree)}
	if err := s.c.call(ctx, r, out); err != nil {
		return nil, err
	}
	return out, nil
}

// Delete removes an imported image that no sandbox uses, and returns it as it was.
// After a lost connection it may be image_not_found: it was removed.
func (s *ImageService) Delete(ctx context.Context, image string) (*Image, error) {
	const verb = "delete image"
	segment, err := escape("an image", image)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", verb, err)
	}
	out := new(Image)
	if err := s.c.call(ctx, request{verb: verb, method: http.MethodDelete, path: "/v1/images/" + segment, once: true}, out); err != nil {
		return nil, err
	}
	return out, nil
}
