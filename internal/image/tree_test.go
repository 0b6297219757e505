package image

import (
	"archive/tar"
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/microvmd/microvm/internal/fault"
)

// accounts is an /etc/passwd that an import wants.
const accounts = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1001::/home/user:/bin/sh\nodd:x:abc:1::/:/bin/sh\n"

var moment = time.Unix(1_700_000_000, 123_000_000)

// member is one of a tree that a test makes.
type member struct {
	tar.Header
	content string
}

func file(name, content string) member {
	return member{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content)), ModTime: moment}, content}
}

func dir(name string) member {
	return member{Header: tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755, ModTime: moment}}
}

func symlink(name, target string) member {
	return member{Header: tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777, ModTime: moment}}
}

func hardLink(name, target string) member {
	return member{Header: tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target, Mode: 0o644, ModTime: moment}}
}

func (m member) with(change func(*tar.Header)) member {
	change(&m.Header)
	return m
}

// attribute is an extended record of a member.
func attribute(key, value string) func(*tar.Header) {
	return func(h *tar.Header) { h.PAXRecords = map[string]string{key: value} }
}

// archive makes a tar of members.
func archive(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		if err := w.WriteHeader(&m.Header); err != nil {
			t.Fatalf("%+v: %v", m.Header, err)
		}
		if _, err := io.WriteString(w, m.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// small is a tree that an image can be made of.
func small(more ...member) []member {
	return append([]member{dir("./"), dir("./etc/"), file("./etc/passwd", accounts)}, more...)
}

// newImports returns an empty catalogue with bounds that a test can reach.
func newImports(t *testing.T) *Catalogue {
	t.Helper()
	c := newCatalogue(t)
	c.bounds = Bounds{Bytes: 1 << 20, Members: 100}
	return c
}

// bring imports a tree that there is nothing wrong with.
func bring(t *testing.T, c *Catalogue, spec Spec, members ...member) Brought {
	t.Helper()
	got, err := c.Import(t.Context(), spec, bytes.NewReader(archive(t, members...)))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func wantCode(t *testing.T, err error, code fault.Code) *fault.Error {
	t.Helper()
	if !fault.Is(err, code) {
		t.Fatalf("got %v, want %s", err, code)
	}
	return fault.From(err)
}
