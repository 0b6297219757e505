package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// packed is what a directory becomes, and what was said of it.
func packed(t *testing.T, top string) (members map[string]tar.Header, order, notes []string, err error) {
	t.Helper()
	stream, err := packTree(t.Context(), top, func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Close() }()
	members = map[string]tar.Header{}
	for r := tar.NewReader(stream); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return members, order, notes, nil
		}
		if err != nil {
			return members, order, notes, err
		}
		content, err := io.ReadAll(r)
		if err != nil || int64(len(content)) != header.Size {
			return members, order, notes, err
		}
		members[header.Name], order = *header, append(order, header.Name)
	}
}

func TestPackTreeKeepsWhatItFinds(t *testing.T) { // as root
	top := t.TempDir()
	in := func(name string) string { return filepath.Join(top, name) }
	moment := time.Unix(1_700_000_000, 5000)
	for _, err := range []error{
		os.Mkdir(in("b"), 0o755), os.WriteFile(in("b/file"), []byte("hello"), 0o644), os.Link(in("b/file"), in("a")),
		os.Symlink("../outside", in("b/link")), unix.Mkfifo(in("pipe"), 0o600), unix.Mknod(in("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
		os.Chown(in("b/file"), 1234, 70_000), os.Chmod(in("b/file"), 0o755|os.ModeSetuid), os.Chtimes(in("b/file"), moment, moment),
		unix.Lsetxattr(in("b"), "user.note", []byte("x\x00y"), 0),
		os.Chmod(in("b"), 0o777|os.ModeSticky),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got, order, notes, err := packed(t, top)
	if err != nil || len(notes) > 0 {
		t.Fatal(err, notes)
	}
	if want := []string{"./", "a", "b/", "b/file", "b/link", "null", "pipe"}; !reflect.DeepEqual(order, want) {
		t.Errorf("order %q, want %q", order, want)
	}
	first, again := got["a"], got["b/file"]
	if first.Mode != 0o4755 || first.Uid != 1234 || first.Gid != 70_000 || !first.ModTime.Equal(moment) || first.Size != 5 || first.Uname != "" {
		t.Errorf("file %+v", first)
	}
	if again.Typeflag != tar.TypeLink || again.Linkname != "a" {
		t.Errorf("its other name %+v", again)
	}
	if b := got["b/"]; b.Mode != 0o1777 || b.PAXRecords["SCHILY.xattr.user.note"] != "x\x00y" {
		t.Errorf("directory %+v", b)
	}
	if l := got["b/link"]; l.Typeflag != tar.TypeSymlink || l.Linkname != "../outside" {
		t.Errorf("link %+v", l)
	}
	if n := got["null"]; n.Typeflag != tar.TypeChar || n.Devmajor != 1 || n.Devminor != 3 {
		t.Errorf("device %+v", n)
	}
	if got["pipe"].Typeflag != tar.TypeFifo {
		t.Errorf("pipe %+v", got["pipe"])
	}
	_, twice, _, err := packed(t, top+"/")
	if err != nil || !reflect.DeepEqual(twice, order) {
		t.Errorf("again %q, %v", twice, err)
	}
}

func TestPackTreeSaysWhatItLeavesOut(t *testing.T) { // as root
	top := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(top, "proc"), 0o700), os.Chown(top, 1000, 1000)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", filepath.Join(top, "proc"), "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(filepath.Join(top, "proc"), unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(top, "proc", "secret"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, order, notes, err := packed(t, top)
	if err != nil || !reflect.DeepEqual(order, []string{"./", "proc/"}) {
		t.Errorf("%q, %v", order, err)
	}
	if all := strings.Join(notes, "\n"); !strings.Contains(all, "left out what is mounted at proc") || !strings.Contains(all, "belongs to uid 1000") {
		t.Errorf("said %q", all)
	}
}

func TestPackTreeRefusesSockets(t *testing.T) {
	top := t.TempDir()
	t.Chdir(top) // a socket's path is short
	listener, err := net.Listen("unix", "s")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	if _, _, _, err := packed(t, top); err == nil || !strings.Contains(err.Error(), "/s is a socket, which no image can have") {
		t.Error(err)
	}
	if _, err := packTree(t.Context(), filepath.Join(top, "none"), nil); !errors.Is(err, syscall.ENOENT) {
		t.Error(err)
	}
}
