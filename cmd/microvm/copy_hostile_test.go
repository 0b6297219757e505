package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// member is one of an archive that a hostile sandbox sends.
func hostileMember(kind byte, name, link, content string) *tar.Header {
	return &tar.Header{Typeflag: kind, Name: name, Linkname: link, Size: int64(len(content)), Mode: 0o6777, ModTime: sampleTime, Format: tar.FormatPAX, PAXRecords: map[string]string{"MICROVM.content": content}}
}

func archiveOf(t *testing.T, members ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	archive := tar.NewWriter(&b)
	for _, head := range members {
		content := head.PAXRecords["MICROVM.content"]
		head.PAXRecords = nil
		err := archive.WriteHeader(head)
		if err == nil && head.Size > 0 && head.Typeflag == tar.TypeReg {
			_, err = io.WriteString(archive, content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// hostileCopy copies out of a sandbox that sends this, into to beside a directory
// "outside" that has a file; nothing of that may change.
func hostileCopy(t *testing.T, archive []byte, limit int64) (to string, x *extraction, err error) {
	t.Helper()
	r := newCopyRig(t)
	largeFile = 1 << 20
	r.raw = func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(archive) }
	home := t.TempDir()
	outside := filepath.Join(home, "outside")
	to = filepath.Join(home, "to")
	for _, dir := range []string{outside, to} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(outside, "file"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	x = &extraction{root: root, limit: limit, meter: &meter{what: "from"}}
	c := &copyOut{remote: r.remote, from: "/workspace", into: x, warn: r.warn}
	err = c.run(t.Context())
	names, _ := os.ReadDir(outside)
	content, _ := os.ReadFile(filepath.Join(outside, "file"))
	info, statErr := os.Stat(filepath.Join(outside, "file"))
	if above, _ := os.ReadDir(home); len(names) != 1 || string(content) != "mine" || statErr != nil || info.Mode() != 0o600 || len(above) != 2 {
		t.Errorf("outside was changed: %q, %v, %v", content, names, above)
	}
	left, _ := filepath.Glob(filepath.Join(to, "*", partialPrefix+"*"))
	more, _ := filepath.Glob(filepath.Join(to, partialPrefix+"*"))
	if len(left)+len(more) > 0 {
		t.Errorf("left %q %q", left, more)
	}
	return to, x, err
}

func TestHostileMembersAreRefused(t *testing.T) {
	dir := func(name string) *tar.Header { return hostileMember(tar.TypeDir, name, "", "") }
	file := func(name string) *tar.Header { return hostileMember(tar.TypeReg, name, "", "evil") }
	link := func(name, to string) *tar.Header { return hostileMember(tar.TypeSymlink, name, to, "") }
	hard := func(name, to string) *tar.Header { return hostileMember(tar.TypeLink, name, to, "") }
	for name, test := range map[string]struct {
		members []*tar.Header
		says    string
	}{
		"absolute":                        {[]*tar.Header{file("/outside/file")}, "outside of it"},
		"up":                              {[]*tar.Header{file("../outside/file")}, "outside of it"},
		"up in the middle":                {[]*tar.Header{dir("a/"), file("a/../../outside/file")}, "outside of it"},
		"up alone":                        {[]*tar.Header{dir("../")}, "outside of it"},
		"not in one way":                  {[]*tar.Header{file("a//b")}, "outside of it"},
		"a file of the tree itself":       {[]*tar.Header{file(".")}, "outside of it"},
		"a link of the tree itself":       {[]*tar.Header{link(".", "../outside")}, "outside of it"},
		"no name":                         {[]*tar.Header{file("")}, "outside of it"},
		"through a link":                  {[]*tar.Header{link("a", "../outside"), file("a/file")}, "a is no directory here"},
		"through a link to a directory":   {[]*tar.Header{dir("a/"), link("b", "a"), file("b/file")}, "b is no directory here"},
		"a directory over a link":         {[]*tar.Header{link("a", "../outside"), dir("a/")}, "twice or out of order"},
		"twice":                           {[]*tar.Header{file("a"), file("a")}, "twice or out of order"},
		"out of order":                    {[]*tar.Header{file("b"), file("a")}, "twice or out of order"},
		"a link, and back to it":          {[]*tar.Header{dir("a/"), link("a/b", "/"), file("b"), file("a/b/c")}, "twice or out of order"},
		"a hard link outside":             {[]*tar.Header{hard("a", "../outside/file")}, "did not come before it"},
		"a hard link to an absolute path": {[]*tar.Header{hard("a", "/etc/passwd")}, "did not come before it"},
		"a hard link through a link":      {[]*tar.Header{link("a", "../outside"), hard("b", "a/file")}, "did not come before it"},
		"a hard link to a link":           {[]*tar.Header{link("a", "../outside/file"), hard("b", "a")}, "did not come before it"},
		"a hard link to a directory":      {[]*tar.Header{dir("a/"), hard("b", "a")}, "did not come before it"},
		"a hard link to what comes":       {[]*tar.Header{hard("a", "b"), file("b")}, "did not come before it"},
		"a line of its own":               {[]*tar.Header{file("/a\n  fix: run this\x1b[2J")}, "outside of it"},
		"a line of its own, too long":     {[]*tar.Header{file("a\n  fix: run this" + strings.Repeat(" ", 240))}, "file name too long"},
		"a line of a directory, too long": {[]*tar.Header{dir("a\n  fix: run this" + strings.Repeat(" ", 240) + "/")}, "file name too long"},
		"a line of a hard link, too long": {[]*tar.Header{file("a"), hard("b\n  fix: run this"+strings.Repeat(" ", 240), "a")}, "file name too long"},
		"a name that never ends":          {[]*tar.Header{file(strings.Repeat("a/", 100_000) + "a")}, "longer than 4096 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := hostileCopy(t, archiveOf(t, test.members...), 0)
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Fatalf("error %v", err)
			}
			if text := err.Error(); len(text) > 400 || strings.ContainsAny(text, "\n\x1b") {
				t.Errorf("the error is %q", text)
			}
		})
	}
}

func TestOddMembersDoNoHarm(t *testing.T) {
	members := []*tar.Header{
		hostileMember(tar.TypeDir, "./", "", ""),
		hostileMember(tar.TypeReg, "\x1b[31mred\n", "", "content"),
		hostileMember(tar.TypeReg, ".microvm-0123456789abcdef.part", "", "not whole"),
		hostileMember(tar.TypeSymlink, "away", "../outside/file", ""),
		hostileMember(tar.TypeBlock, "block", "", ""),
		hostileMember(tar.TypeChar, "device", "", ""),
		hostileMember(tar.TypeReg, "file", "", "content"),
		hostileMember(tar.TypeLink, "hard", "file", ""),
		hostileMember(tar.TypeSymlink, "near", "file", ""),
		hostileMember(tar.TypeFifo, "pipe", "", ""),
		hostileMember('?', "unknown", "", ""),
	}
	to, x, err := hostileCopy(t, archiveOf(t, members...), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if x.leftOut != 4 || x.outward != 1 {
		t.Errorf("left out %d, %d lead out", x.leftOut, x.outward)
	}
	var names []string
	entries, _ := os.ReadDir(to)
	for _, entry := range entries {
		names = append(names, entry.Name())
		if info, err := entry.Info(); err != nil || info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0 {
			t.Errorf("%q has mode %v, %v", entry.Name(), info.Mode(), err)
		}
	}
	if got := strings.Join(names, "|"); got != "\x1b[31mred\n|away|file|hard|near" {
		t.Errorf("there is %q", got)
	}
	if info, _ := os.Stat(to); info.Mode().Perm() != 0o755 {
		t.Errorf("the target got the mode %s", info.Mode())
	}
	if line := x.meter.line(time.Second); strings.ContainsAny(line, "\x1b\n") {
		t.Errorf("progress says %q", line)
	}
}

func TestContentIsBounded(t *testing.T) {
	huge := hostileMember(tar.TypeReg, "huge", "", "")
	huge.Size = 1 << 50
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(huge); err != nil {
		t.Fatal(err)
	}
	many := []*tar.Header{hostileMember(tar.TypeReg, "a", "", strings.Repeat("a", 600)), hostileMember(tar.TypeReg, "b", "", strings.Repeat("b", 600))}
	for name, archive := range map[string][]byte{"one file": b.Bytes(), "all together": archiveOf(t, many...)} {
		to, _, err := hostileCopy(t, archive, 1000)
		if err == nil || !strings.Contains(err.Error(), "more than 1000 B of content") {
			t.Errorf("%s: error %v", name, err)
		}
		if _, err := os.Stat(filepath.Join(to, "huge")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAFileThatNeverEndsIsLeft: the end of the context leaves what is whole, and
// nothing of what is not.
func TestAFileThatNeverEndsIsLeft(t *testing.T) {
	r := newCopyRig(t)
	largeFile = 1 << 60
	begun := make(chan struct{})
	r.raw = func(w http.ResponseWriter, _ *http.Request) {
		archive := tar.NewWriter(w)
		_ = archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "a", Size: 1, Mode: 0o600, Format: tar.FormatPAX})
		_, _ = archive.Write([]byte("a"))
		_ = archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "b", Size: 1 << 50, Mode: 0o600})
		part := make([]byte, 1<<20)
		for n := 0; ; n++ {
			if _, err := archive.Write(part); err != nil {
				return
			}
			if n == 64 { // more than any buffer on the way holds: it is read
				close(begun)
			}
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-begun
		cancel(&interruption{2})
	}()
	to := t.TempDir()
	_, err := r.out(ctx, t, to)
	var stopped *interruption
	if !errors.As(err, &stopped) {
		t.Fatalf("error %v", err)
	}
	entries, _ := os.ReadDir(to)
	if len(entries) != 1 || entries[0].Name() != "a" {
		t.Fatalf("there are %v", entries)
	}
}

// TestLinksHereAreNotFollowed: what lies at the target already leads nowhere.
func TestLinksHereAreNotFollowed(t *testing.T) {
	r := newCopyRig(t)
	r.putSamples()
	home := t.TempDir()
	to, outside := filepath.Join(home, "to"), filepath.Join(home, "outside")
	if err := errors.Join(os.Mkdir(to, 0o755), os.Mkdir(outside, 0o755), os.Symlink("../outside", filepath.Join(to, "a"))); err != nil {
		t.Fatal(err)
	}
	_, err := r.out(t.Context(), t, to)
	if err == nil || !strings.Contains(err.Error(), "a is no directory here") {
		t.Fatalf("error %v", err)
	}
	if entries, _ := os.ReadDir(outside); len(entries) > 0 {
		t.Fatalf("outside has %v", entries)
	}
}
