package contract

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// rootTree is the tar of a small root tree; each word makes another one.
func rootTree(t *testing.T, word string, more ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, file := range [][2]string{{"etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"}, {"word", word}} {
		err := w.WriteHeader(&tar.Header{Name: file[0], Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(file[1]))})
		if _, writeErr := io.WriteString(w, file[1]); err != nil || writeErr != nil {
			t.Fatal(err, writeErr)
		}
	}
	for _, header := range more {
		if err := w.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func bring(t *testing.T, c *microvm.Client, spec microvm.ImageImport, tree []byte) *microvm.Image {
	t.Helper()
	image, err := c.Images.Import(t.Context(), spec, bytes.NewReader(tree))
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// wantRefusal wants an error of the API, and returns its message.
func wantRefusal(t *testing.T, err error, code microvm.ErrorCode) string {
	t.Helper()
	var refused *microvm.Error
	if !errors.As(err, &refused) || refused.Code != code {
		t.Fatalf("got %v, want %s", err, code)
	}
	return refused.Message
}

// TestImagesComeAndGo: import, list, use, and a removal that waits for the last
// user, which may be one that an earlier daemon left running.
func TestImagesComeAndGo(t *testing.T) {
	d := start(t)
	c := d.remote()
	tree := rootTree(t, "one")
	image := bring(t, c, microvm.ImageImport{Name: "mine", Language: "c", Env: map[string]string{"FROM_IMAGE": "yes"}}, tree)
	if image.ID != "mine" || image.Source != microvm.ImageSourceImported || image.User != "root" || image.Workdir != "/workspace" || !strings.HasPrefix(image.Digest, "sha256:") {
		t.Errorf("imported %+v", image)
	}
	if again := bring(t, c, microvm.ImageImport{Name: "mine", Language: "c", Env: map[string]string{"FROM_IMAGE": "yes"}}, tree); again.Digest != image.Digest {
		t.Errorf("again %+v", again)
	}
	list, err := c.Images.List(t.Context())
	if err != nil || len(list.Data) != 2 || list.Data[0].ID != "mine" || list.Data[1].Source != microvm.ImageSourceBuilt {
		t.Fatalf("%+v, %v", list, err)
	}
	sb := create(t, c, microvm.SandboxCreate{Image: "mine"})
	_, err = c.Images.Delete(t.Context(), "mine")
	if message := wantRefusal(t, err, microvm.ErrorCodeImageInUse); !strings.Contains(message, "1 sandbox uses") {
		t.Error(message)
	}

	other := rootTree(t, "two")
	_, err = c.Images.Import(t.Context(), microvm.ImageImport{Name: "mine"}, bytes.NewReader(other))
	wantRefusal(t, err, microvm.ErrorCodeResourceAlreadyExists)
	replaced := bring(t, c, microvm.ImageImport{Name: "mine", Replace: true}, other)
	if replaced.Digest == image.Digest {
		t.Errorf("replaced %+v", replaced)
	}
	if code := d.stop(t); code != 0 {
		t.Fatal(code)
	}
	d.run(t)
	c = d.remote()
	list, err = c.Images.List(t.Context())
	if err != nil || len(list.Data) != 2 || list.Data[0].Digest != replaced.Digest {
		t.Fatalf("%+v, %v", list, err)
	}
	// The fake's microVMs do not survive their daemon: the row is settled.
	if _, err := c.Sandboxes.Delete(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Images.Delete(t.Context(), "mine"); err != nil {
		t.Fatal(err)
	}
	_, err = c.Images.Delete(t.Context(), "mine")
	wantRefusal(t, err, microvm.ErrorCodeImageNotFound)
	_, err = c.Sandboxes.Create(t.Context(), microvm.SandboxCreate{Image: "mine"})
	wantRefusal(t, err, microvm.ErrorCodeImageNotFound)
	for _, replace := range []bool{false, true} { // what setup installed stays
		_, err = c.Images.Import(t.Context(), microvm.ImageImport{Name: "python", Replace: replace}, bytes.NewReader(tree))
		wantRefusal(t, err, map[bool]microvm.ErrorCode{false: microvm.ErrorCodeResourceAlreadyExists, true: microvm.ErrorCodeForbidden}[replace])
	}
	_, err = c.Images.Delete(t.Context(), "python")
	wantRefusal(t, err, microvm.ErrorCodeForbidden)
	onlyPython(t, d)
}

func onlyPython(t *testing.T, d *daemon) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(d.dir, "images"))
	if err != nil || len(entries) != 1 || entries[0].Name() != "python" {
		t.Errorf("images has %v, %v", entries, err)
	}
}

// TestImportsAreBoundedAndChecked: a hostile member by its name, and each bound of
// the configuration by its own name; nothing is left.
func TestImportsAreBoundedAndChecked(t *testing.T) {
	d := start(t, "--image-mib", "1", "--image-members", "5")
	c := d.remote()
	refused := func(tree []byte, code microvm.ErrorCode, want string) {
		t.Helper()
		_, err := c.Images.Import(t.Context(), microvm.ImageImport{Name: "bad"}, bytes.NewReader(tree))
		if message := wantRefusal(t, err, code); !strings.Contains(message, want) {
			t.Errorf("message %q, want %q", message, want)
		}
	}
	refused(rootTree(t, "", tar.Header{Name: "../\x1bescape", Typeflag: tar.TypeReg, Mode: 0o644}), microvm.ErrorCodeImageInvalid, `member "../\x1bescape": its name has ".."`)
	refused(rootTree(t, strings.Repeat("x", 1<<20)), microvm.ErrorCodePayloadTooLarge, "image-mib")
	refused(rootTree(t, "", tar.Header{Name: "a/b/c/d", Typeflag: tar.TypeReg, Mode: 0o644}), microvm.ErrorCodePayloadTooLarge, "image-members")
	onlyPython(t, d)
	bring(t, c, microvm.ImageImport{Name: "good"}, rootTree(t, strings.Repeat("x", 1<<19)))
}

// TestAKilledImportLeavesNothing: neither a daemon that is killed in the middle
// nor a caller who goes away leaves an image, or a draft after the next start.
func TestAKilledImportLeavesNothing(t *testing.T) {
	d := start(t)
	tree := rootTree(t, strings.Repeat("x", 1<<20))
	half := func(ctx context.Context) (goOn *io.PipeWriter, imported <-chan error) {
		body, send := io.Pipe()
		done := make(chan error, 1)
		go func() { _, err := d.remote().Images.Import(ctx, microvm.ImageImport{Name: "mine"}, body); done <- err }()
		if _, err := send.Write(tree[:len(tree)/2]); err != nil {
			t.Fatal(err)
		}
		return send, done
	}
	drafts := func() int {
		entries, err := filepath.Glob(filepath.Join(d.dir, "images", ".*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	leave, gone := context.WithCancel(t.Context())
	rest, imported := half(leave)
	eventually(t, "a draft", func() bool { return drafts() == 1 })
	gone()
	if err := rest.CloseWithError(context.Canceled); err != nil { // net/http waits for who sends
		t.Fatal(err)
	}
	if err := <-imported; err == nil {
		t.Error("imported")
	}
	eventually(t, "no draft", func() bool { return drafts() == 0 })

	rest, imported = half(t.Context())
	eventually(t, "a draft", func() bool { return drafts() == 1 })
	d.kill(t)
	if err := rest.CloseWithError(io.ErrUnexpectedEOF); err != nil {
		t.Fatal(err)
	}
	if err := <-imported; err == nil {
		t.Error("imported")
	}
	d.run(t)
	onlyPython(t, d)
	bring(t, d.remote(), microvm.ImageImport{Name: "mine"}, tree)
}
