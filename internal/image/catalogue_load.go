package image

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxMetadata bounds image.json, in bytes.
const maxMetadata = 64 << 10

// errNoFolder means that there is nothing of an image's name.
var errNoFolder = errors.New("no such folder")

// load reads and checks everything of an image except its digest.
func (c *Catalogue) load(id string) (Image, error) {
	fail := func(err error) (Image, error) { return Image{}, err }
	if !ValidID(id) {
		return fail(errors.New("the folder's name is no image id"))
	}
	folder := filepath.Join(c.dir, id)
	info, err := os.Lstat(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return fail(errNoFolder)
	}
	if err != nil {
		return fail(err)
	}
	if !info.IsDir() {
		return fail(fmt.Errorf("%s is no folder", folder))
	}
	// Who may write a folder may replace what is in it, checked or not.
	above, err := os.Stat(c.dir)
	if err == nil {
		err = errors.Join(c.ownedOnly(c.dir, above), c.ownedOnly(folder, info))
	}
	if err != nil {
		return fail(err)
	}
	img, err := c.metadata(filepath.Join(folder, "image.json"))
	if err != nil {
		return fail(err)
	}
	if err := c.checkMetadata(img, id); err != nil {
		return fail(fmt.Errorf("image.json: %w", err))
	}
	img.Path = filepath.Join(folder, img.file())
	file, size, err := c.openOwned(img.Path)
	if err != nil {
		return fail(err)
	}
	if err := file.Close(); err != nil {
		return fail(err)
	}
	if size != img.SizeBytes {
		return fail(fmt.Errorf("%s has %d bytes, image.json says %d", img.Path, size, img.SizeBytes))
	}
	return img, nil
}

func (c *Catalogue) metadata(path string) (img Image, err error) {
	file, size, err := c.openOwned(path)
	if err != nil {
		return img, err
	}
	defer func() { _ = file.Close() }() // read only
	if size > maxMetadata {
		return img, fmt.Errorf("%s has %d bytes, the most is %d", path, size, maxMetadata)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxMetadata))
	if err != nil {
		return img, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&img); err != nil {
		return img, fmt.Errorf("image.json: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return img, errors.New("image.json: more than one JSON value")
	}
	return img, nil
}

func (c *Catalogue) checkMetadata(img Image, id string) error {
	digest, sha := strings.CutPrefix(img.Digest, "sha256:")
	raw, err := hex.DecodeString(digest)
	switch {
	case img.ID != id:
		return fmt.Errorf("id is %.70q, the folder is %q", img.ID, id)
	case img.Arch != c.arch:
		return fmt.Errorf("arch is %.70q, this node is %s", img.Arch, c.arch)
	case img.Format != "ext4" && img.Format != "erofs":
		return fmt.Errorf("format is %.70q, want ext4 or erofs", img.Format)
	case img.Source != "" && img.Source != Imported:
		return fmt.Errorf("source is %.70q, want %q or none", img.Source, Imported)
	case img.SizeBytes < 1:
		return fmt.Errorf("size_bytes is %d", img.SizeBytes)
	case !sha || err != nil || len(raw) != sha256.Size || digest != strings.ToLower(digest):
		return fmt.Errorf("digest is %.80q, want sha256: and 64 lower-case hex digits", img.Digest)
	case !filepath.IsAbs(img.Workdir) || filepath.Clean(img.Workdir) != img.Workdir:
		return fmt.Errorf("workdir is %.70q, want a clean absolute path", img.Workdir)
	case img.User == "" || strings.ContainsAny(img.User, ":/\x00\n"):
		return fmt.Errorf("user is %.70q", img.User)
	case img.UID < 0 || img.GID < 0 || img.PackagesCount < 0:
		return fmt.Errorf("uid %d, gid %d, packages_count %d: none may be negative", img.UID, img.GID, img.PackagesCount)
	}
	for key, value := range img.Env {
		if key == "" || strings.ContainsAny(key, "=\x00") || strings.Contains(value, "\x00") {
			return fmt.Errorf("env: %.70q cannot be set in an environment", key)
		}
	}
	return nil
}

// openOwned opens a regular file that only the owner may write. It follows no
// link and waits for no pipe.
func (c *Catalogue) openOwned(path string) (file *os.File, size int64, err error) {
	file, err = os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	if err == nil {
		err = c.ownedOnly(path, info)
	}
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, info.Size(), nil
}

// ownedOnly refuses what another user owns or may write.
func (c *Catalogue) ownedOnly(path string, info fs.FileInfo) error {
	stat := info.Sys().(*syscall.Stat_t)
	if int(stat.Uid) != c.owner {
		return fmt.Errorf("%s belongs to uid %d, want %d", path, stat.Uid, c.owner)
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("%s has mode %04o: others than its owner may write it", path, mode)
	}
	return nil
}
