package machine

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func testFile(dst string, text string) outgoing {
	sum := sha256.Sum256([]byte(text))
	return outgoing{File: File{Data: []byte(text), Dst: dst, Mode: 0o644}, entry: entry{Hash: hex.EncodeToString(sum[:]), Size: int64(len(text)), MTime: 1000, Mode: 0o644, Path: dst}}
}

func unpack(t *testing.T, r io.Reader) (names []string, content map[string]string) {
	t.Helper()
	content = map[string]string{}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return names, content
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		content[h.Name] = fmt.Sprintf("%o %d %s", h.Mode, h.ModTime.Unix(), text)
	}
}

func TestParcel(t *testing.T) {
	a, b := testFile("/usr/local/bin/a", "aaa"), testFile("/var/lib/microvm/b", "bb")
	old := testFile("/etc/old", "o")
	all := map[string]entry{a.Dst: a.entry, b.Dst: b.entry, old.Dst: old.entry}
	var first, second bytes.Buffer
	for _, w := range []io.Writer{&first, &second} {
		if err := writeParcel(w, []outgoing{a, b}, all, time.Unix(1000, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("equal content gave other bytes")
	}
	names, content := unpack(t, &first)
	if want := []string{"run/machine-push/plan", "usr/local/bin/a.push", "var/lib/microvm/b.push", "var/lib/microvm/.pushed.push", "etc/microvm/.pushed.push"}; !slices.Equal(names, want) {
		t.Errorf("names %q", names)
	}
	for name, want := range map[string]string{
		"run/machine-push/plan":        "600 1000 /usr/local/bin/a.push\t/usr/local/bin/a\n/var/lib/microvm/b.push\t/var/lib/microvm/b\n/var/lib/microvm/.pushed.push\t/var/lib/microvm/.pushed\n/etc/microvm/.pushed.push\t/etc/microvm/.pushed\n",
		"usr/local/bin/a.push":         "644 1000 aaa",
		"var/lib/microvm/.pushed.push": "600 1000 " + b.line(),
		"etc/microvm/.pushed.push":     "600 1000 " + old.line() + a.line(),
	} {
		if content[name] != want {
			t.Errorf("%s holds %q, want %q", name, content[name], want)
		}
	}
}

func TestParcelOfAFileThatShrank(t *testing.T) {
	src := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(src, []byte("ab"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := testFile("/x", "abc")
	f.Src, f.Data = src, nil
	if err := writeParcel(io.Discard, []outgoing{f}, map[string]entry{}, time.Unix(1, 0)); err == nil || !strings.Contains(err.Error(), "changed while it was read") {
		t.Errorf("error: %v", err)
	}
}

func TestSeed(t *testing.T) {
	f := testFile("/etc/hostname", "default\n")
	var out bytes.Buffer
	if err := writeSeed(&out, []outgoing{f}, time.Unix(1000, 0)); err != nil {
		t.Fatal(err)
	}
	names, content := unpack(t, &out)
	if !slices.Equal(names, []string{"etc/hostname", "etc/microvm/.pushed"}) || content["etc/microvm/.pushed"] != "600 1000 "+f.line() {
		t.Errorf("%q %q", names, content)
	}
	if err := writeSeed(io.Discard, []outgoing{testFile("/x", strings.Repeat("x", seedLimit))}, time.Unix(1, 0)); err == nil {
		t.Error("a seed over its limit was taken")
	}
}

func TestParseList(t *testing.T) {
	same, changed, gone, other := testFile("/a b", "1"), testFile("/c", "22"), testFile("/d", "3"), testFile("/e", "4")
	list := same.line() + changed.line() + gone.line() + other.line() + "---\n1\t1000\t/a b\n2\t1001\t/c\n"
	got, err := parseList(list, []string{"/a b", "/c", "/d", "/f"})
	if err != nil || len(got) != 2 || got["/a b"] != same.entry || got["/e"] != other.entry {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", "X\n---\n", "---\n1\n", "a\tb\tc\td\te\n---\n"} {
		if _, err := parseList(bad, nil); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestBatches(t *testing.T) {
	sized := func(n int64) outgoing { return outgoing{File: File{Dst: "/f"}, entry: entry{Size: n}} }
	got, err := batches([]outgoing{sized(5000), sized(5000), sized(1000)}, 15000)
	if err != nil || len(got) != 2 || len(got[0]) != 1 || len(got[1]) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := batches([]outgoing{sized(15000)}, 15000); err == nil {
		t.Error("a file over the limit was taken")
	}
	if got, err := batches(nil, 1); got != nil || err != nil {
		t.Error(got, err)
	}
}

func TestFileCheck(t *testing.T) {
	for dst, ok := range map[string]bool{"/a/b": true, "a": false, "/": false, "/a/../b": false, "/a\tb": false, "/a\nb": false, "": false} {
		if err := (File{Dst: dst}).check(); (err == nil) != ok {
			t.Errorf("%q: %v", dst, err)
		}
	}
}
