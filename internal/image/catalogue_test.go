package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/microvmd/microvm/internal/fault"
)

const content = "a root filesystem"

func valid(id string) Image {
	sum := sha256.Sum256([]byte(content))
	return Image{
		ID: id, Language: "python", LanguageVersion: "3.13", Arch: runtime.GOARCH, SizeBytes: int64(len(content)),
		Digest: "sha256:" + hex.EncodeToString(sum[:]), Format: "erofs", Env: map[string]string{"PATH": "/bin"},
		Workdir: "/workspace", UID: 1000, GID: 1000, User: "user", DebianRelease: "trixie", PackagesCount: 3,
	}
}

// newCatalogue returns an empty one that takes files of whoever runs the test.
func newCatalogue(t *testing.T) *Catalogue {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "images")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c := Open(dir, Bounds{Bytes: 64 << 20, Members: 1000})
	c.owner = os.Getuid()
	return c
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// add puts an image in the catalogue as the recipes' build does.
func add(t *testing.T, c *Catalogue, img Image) Image {
	t.Helper()
	text, err := json.Marshal(img)
	if err != nil {
		t.Fatal(err)
	}
	img.Path = filepath.Join(c.dir, img.ID, "rootfs."+img.Format)
	put(t, filepath.Join(c.dir, img.ID, "image.json"), string(text))
	put(t, img.Path, content)
	return img
}

func TestCatalogueFindsWhatIsThere(t *testing.T) {
	c := newCatalogue(t)
	if images, err := c.Images(t.Context()); err != nil || len(images) != 0 {
		t.Fatal(images, err)
	}
	var want []Image
	for _, id := range []string{"Base", "node-22", "python", "python3.13"} { // in order; each is seen without a restart
		want = append(want, add(t, c, valid(id)))
		images, err := c.Images(t.Context())
		if err != nil || !reflect.DeepEqual(images, want) {
			t.Fatalf("got %+v %v\nwant %+v", images, err, want)
		}
	}
	put(t, filepath.Join(c.dir, ".draft", "image.json"), "{")
	for _, img := range want {
		got, err := c.Image(t.Context(), img.ID)
		if err != nil || !reflect.DeepEqual(got, img) {
			t.Fatalf("got %+v %v\nwant %+v", got, err, img)
		}
	}
	if broken, err := c.Broken(t.Context()); err != nil || len(broken) != 0 {
		t.Fatal(broken, err)
	}
}

func TestCatalogueReadsWhatTheRecipesWrite(t *testing.T) {
	c := newCatalogue(t)
	c.arch = "amd64"
	put(t, filepath.Join(c.dir, "python", "rootfs.erofs"), content)
	put(t, filepath.Join(c.dir, "python", "image.json"), `{
  "id": "python",
  "language": "python",
  "language_version": "3.13.5",
  "arch": "amd64",
  "size_bytes": 17,
  "digest": "`+valid("").Digest+`",
  "format": "erofs",
  "env": {"PATH": "/bin", "HOME": "/home/user", "LANG": "C.UTF-8"},
  "workdir": "/workspace",
  "uid": 1000,
  "gid": 1000,
  "user": "user",
  "debian_release": "trixie",
  "packages_count": 150
}
`)
	img, err := c.Image(t.Context(), "python")
	if err != nil || img.PackagesCount != 150 || img.GID != 1000 || img.DebianRelease != "trixie" {
		t.Fatalf("%+v %v", img, err)
	}
}

func TestNotFoundSaysWhatThereIs(t *testing.T) {
	c := Open(filepath.Join(t.TempDir(), "none"), Bounds{})
	_, err := c.Image(t.Context(), "python")
	if f := fault.From(err); f.Code != fault.ImageNotFound || f.Param != "image" ||
		!strings.Contains(f.Message, `"python"`) || !strings.Contains(f.Message, "`microvm images`") {
		t.Fatal(err)
	}
	c = newCatalogue(t)
	for _, id := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"} {
		add(t, c, valid(id))
	}
	_, err = c.Image(t.Context(), "python")
	if f := fault.From(err); !strings.Contains(f.Message, "a, b, c, d, e, f, g, h, i, j and 2 more") || strings.Contains(f.Message, c.dir) {
		t.Fatal(err)
	}
}

func TestHostileIDsNeverTouchTheDisk(t *testing.T) {
	c := newCatalogue(t)
	// What a path made of the id would reach, were one made.
	outside := valid("x")
	outside.ID = "../x"
	add(t, c, outside)
	for _, id := range []string{
		"", ".", "..", "../x", "x/../../x", "/etc", "a/b", "a\\b", "-x", ".x", "a\x00b", "a b", "a\nb", "питон", "pуthon", "%2e%2e",
		strings.Repeat("a", 65), strings.Repeat("../", 100_000),
	} {
		_, err := c.Image(t.Context(), id)
		if !fault.Is(err, fault.ImageNotFound) {
			t.Errorf("%.20q: %v", id, err)
		}
		if len(fault.From(err).Message) > 1000 {
			t.Errorf("%.20q: message of %d bytes", id, len(fault.From(err).Message))
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.String().Draw(t, "id")
		if ValidID(id) && (filepath.Base(id) != id || filepath.Clean("/x/"+id) != "/x/"+id || id != strings.ToValidUTF8(id, "")) {
			t.Fatalf("%q is no plain name", id)
		}
	})
}

func TestBrokenImagesAreRefusedAndNamed(t *testing.T) {
	change := func(edit func(*Image)) func(*testing.T, *Catalogue) {
		return func(t *testing.T, c *Catalogue) {
			img := valid("bad")
			edit(&img)
			text, err := json.Marshal(img)
			if err != nil {
				t.Fatal(err)
			}
			put(t, filepath.Join(c.dir, "bad", "image.json"), string(text))
		}
	}
	onFile := func(name string, do func(path string) error) func(*testing.T, *Catalogue) {
		return func(t *testing.T, c *Catalogue) {
			if err := do(filepath.Join(c.dir, "bad", name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	mode := func(m os.FileMode) func(string) error { return func(p string) error { return os.Chmod(p, m) } }
	text := func(s string) func(string) error {
		return func(p string) error { return os.WriteFile(p, []byte(s), 0o644) }
	}
	link := func(p string) error { return errors.Join(os.Rename(p, p+".real"), os.Symlink(p+".real", p)) }
	pipe := func(p string) error { return errors.Join(os.Remove(p), syscall.Mkfifo(p, 0o600)) }
	folder := func(p string) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o755)) }
	for name, c := range map[string]struct {
		spoil func(*testing.T, *Catalogue)
		want  string
	}{
		"other id":          {change(func(i *Image) { i.ID = "good" }), `id is "good"`},
		"other arch":        {change(func(i *Image) { i.Arch = "riscv64" }), `arch is "riscv64"`},
		"format":            {change(func(i *Image) { i.Format = "../../x" }), "want ext4 or erofs"},
		"other format":      {change(func(i *Image) { i.Format = "ext4" }), "no such file"},
		"size":              {change(func(i *Image) { i.SizeBytes++ }), "has 17 bytes, image.json says 18"},
		"no size":           {change(func(i *Image) { i.SizeBytes = 0 }), "size_bytes"},
		"digest kind":       {change(func(i *Image) { i.Digest = "md5:00" }), "sha256"},
		"digest length":     {change(func(i *Image) { i.Digest = "sha256:00" }), "64 lower-case hex"},
		"digest case":       {change(func(i *Image) { i.Digest = "sha256:" + strings.ToUpper(i.Digest[7:]) }), "lower-case"},
		"workdir":           {change(func(i *Image) { i.Workdir = "workspace" }), "workdir"},
		"workdir dots":      {change(func(i *Image) { i.Workdir = "/a/../b" }), "workdir"},
		"user":              {change(func(i *Image) { i.User = "" }), "user"},
		"uid":               {change(func(i *Image) { i.UID = -1 }), "negative"},
		"env":               {change(func(i *Image) { i.Env["A=B"] = "" }), "env"},
		"unknown field":     {onFile("image.json", text(`{"id":"bad","kernel":"x"}`)), `unknown field "kernel"`},
		"two values":        {onFile("image.json", text(`{} {}`)), "more than one"},
		"no JSON":           {onFile("image.json", text(`<xml>`)), "invalid character"},
		"empty metadata":    {onFile("image.json", text(``)), "EOF"},
		"huge metadata":     {onFile("image.json", text(strings.Repeat(" ", maxMetadata+1))), "the most is"},
		"no metadata":       {onFile("image.json", os.Remove), "no such file"},
		"metadata link":     {onFile("image.json", link), "too many levels"},
		"metadata pipe":     {onFile("image.json", pipe), "no regular file"},
		"metadata writable": {onFile("image.json", mode(0o664)), "0664"},
		"no file":           {onFile("rootfs.erofs", os.Remove), "no such file"},
		"file link":         {onFile("rootfs.erofs", link), "too many levels"},
		"file folder":       {onFile("rootfs.erofs", folder), "no regular file"},
		"file pipe":         {onFile("rootfs.erofs", pipe), "no regular file"},
		"file writable":     {onFile("rootfs.erofs", mode(0o646)), "0646"},
		"folder writable":   {onFile("", mode(0o777)), "0777"},
		"all writable":      {onFile("..", mode(0o777)), "0777"},
		"owner":             {func(_ *testing.T, c *Catalogue) { c.owner++ }, "belongs to uid"},
		"folder is file": {func(t *testing.T, c *Catalogue) {
			if err := os.RemoveAll(filepath.Join(c.dir, "bad")); err != nil {
				t.Fatal(err)
			}
			put(t, filepath.Join(c.dir, "bad"), "")
		}, "no folder"},
		"folder is link": {func(t *testing.T, c *Catalogue) {
			if err := link(filepath.Join(c.dir, "bad")); err != nil {
				t.Fatal(err)
			}
		}, "no folder"},
	} {
		t.Run(name, func(t *testing.T) {
			cat := newCatalogue(t)
			add(t, cat, valid("bad"))
			if _, err := cat.Image(t.Context(), "bad"); err != nil {
				t.Fatal("before it was spoilt:", err)
			}
			c.spoil(t, cat)
			_, err := cat.Image(t.Context(), "bad")
			f := fault.From(err)
			if f.Code != fault.InternalError || f.Cause == nil || !strings.Contains(f.Cause.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			if strings.Contains(f.Message, cat.dir) || !strings.Contains(f.Message, `"bad"`) {
				t.Errorf("message %q", f.Message)
			}
			images, err := cat.Images(t.Context())
			if err != nil || len(images) != 0 {
				t.Errorf("listed: %+v %v", images, err)
			}
			broken, err := cat.Broken(t.Context())
			if err != nil || len(broken) == 0 || !strings.Contains(broken[0].Error(), c.want) {
				t.Errorf("broken: %v %v", broken, err)
			}
		})
	}
}
