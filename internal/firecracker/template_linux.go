package firecracker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/sandbox"
)

// A template is StateDir/templates/<name>/ with the memory and the devices of a
// microVM whose agent had just said hello, and the blank scratch disk that it
// booted with. The directory appears by one rename and is never changed; its
// files are root's and 0444, so that a VMM in whose jail they are linked can
// read them and no VMM can write them.
//
// A restored guest finds a fresh scratch disk under the name of the one that
// its template booted with. That is safe because the template's agent had not
// mounted it: all that its kernel read of it is what the search for partitions
// reads of every disk, and these blocks, which stay in its page cache, are the
// same in every copy of one blank. Hence the blank belongs to the template: one
// that another mkfs made may differ in just those blocks.
const (
	memoryName = "memory"
	stateName  = "state"
	// newPrefix begins the names of directories that are not complete, or not
	// wanted any more.
	newPrefix = "new-"
)

var templateName = regexp.MustCompile(`^[0-9a-f]{32}$`)

func validTemplate(name string) error {
	if !templateName.MatchString(name) {
		return fmt.Errorf("%.40q is no name of a template", name)
	}
	return nil
}

// TemplateOf names the template of a plan: 12 hex digits of a hash over the image,
// and 20 of one over the image, the host as New found it and what the plan asks
// for. A snapshot of another Firecracker, processor or kernel may fail to load, or
// load and go wrong.
func (v *VMM) TemplateOf(plan sandbox.Plan) string {
	of := fmt.Sprintf("image %q %q\n", plan.Image.ID, plan.Image.Digest)
	img := sha256.Sum256([]byte(of))
	all := sha256.Sum256(fmt.Appendf(nil, "%s\n%svcpus %d mem %d scratch %d\n", v.basis, of, plan.VCPUs, plan.MemMiB, plan.ScratchMiB))
	return hex.EncodeToString(append(img[:sandbox.TemplateImage/2:sandbox.TemplateImage/2], all[:16-sandbox.TemplateImage/2]...))
}

// openTemplates makes the templates' directory and removes what a daemon that
// ended left half-made in it.
func (v *VMM) openTemplates(ctx context.Context) error {
	dir, err := os.OpenFile(v.templatesDir(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open templates: %w", err)
	}
	v.templates = dir
	return v.do("remove half-made templates", func() error {
		entries, err := os.ReadDir(v.templatesDir())
		for _, entry := range entries {
			if err == nil && strings.HasPrefix(entry.Name(), newPrefix) {
				err = removeTree(ctx, int(dir.Fd()), entry.Name())
			}
		}
		return err
	})
}

// Templates names all complete templates, sorted.
func (v *VMM) Templates(context.Context) ([]string, error) {
	entries, err := os.ReadDir(v.templatesDir())
	if err != nil {
		return nil, fmt.Errorf("list templates: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if validTemplate(entry.Name()) == nil && entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// DropTemplate removes a template, as a whole for those who list or link it.
func (v *VMM) DropTemplate(ctx context.Context, template string) error {
	if err := validTemplate(template); err != nil {
		return fmt.Errorf("drop template: %w", err)
	}
	at := int(v.templates.Fd())
	return v.do("drop template", func() error {
		// Whoever stopped half-way left it under its other name.
		if err := removeTree(ctx, at, newPrefix+template); err != nil {
			return err
		}
		err := unix.Renameat(at, template, at, newPrefix+template)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return &os.PathError{Op: "rename", Path: template, Err: err}
		}
		return removeTree(ctx, at, newPrefix+template)
	})
}

func (v *VMM) templatesDir() string { return filepath.Join(v.conf.StateDir, "templates") }
