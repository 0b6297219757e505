package main

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// importImage notes what came, in one line: see brought.
func (f *fakeNode) importImage(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	buffered := bufio.NewReader(r.Body)
	var body io.Reader = buffered
	if head, _ := buffered.Peek(2); string(head) == "\x1f\x8b" {
		unzipped, err := gzip.NewReader(buffered)
		if err != nil {
			missing(w, microvm.ErrorCodeImageInvalid, err.Error())
			return
		}
		body = unzipped
	}
	var names []string
	for archive := tar.NewReader(body); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			missing(w, microvm.ErrorCodeImageInvalid, err.Error())
			return
		}
		names = append(names, header.Name)
	}
	_, _ = io.Copy(io.Discard, body)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.brought = fmt.Sprintf("%s user=%s workdir=%s env=%s language=%s/%s replace=%t members=%s", q.Get("name"), q.Get("user"), q.Get("workdir"),
		q.Get("env"), q.Get("language"), q.Get("language_version"), q.Get("replace") == "true", strings.Join(names, ","))
	send(w, 201, importedImage(q.Get("name")))
}

func deleteImage(w http.ResponseWriter, r *http.Request) {
	send(w, 200, importedImage(r.PathValue("image")))
}

func importedImage(id string) microvm.Image {
	return microvm.Image{
		ID: id, Object: microvm.ImageObjectImage, Arch: "amd64", Digest: "sha256:0123456789abcdef", SizeBytes: 900, User: "root", Workdir: "/workspace",
		Source: microvm.ImageSourceImported,
	}
}

// brought 'name user=...': the last import was this one.
func scriptBrought(ts *testscript.TestScript, neg bool, args []string) {
	n := node(ts)
	n.mu.Lock()
	defer n.mu.Unlock()
	if got := n.brought; len(args) != 1 || neg || got != args[0] {
		ts.Fatalf("brought %s", got)
	}
}
