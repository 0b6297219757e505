package firecracker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func openTest(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// nest makes n directories, one in the other, further down than a path reaches.
func nest(t *testing.T, dir string, n int) {
	t.Helper()
	at, name := openTest(t, dir), strings.Repeat("d", 60)
	for level := range n {
		must(t, unix.Mkdirat(int(at.Fd()), name, 0o700), unix.Mkdirat(int(at.Fd()), "side", 0o700))
		next, err := openDir(int(at.Fd()), name)
		must(t, err)
		if level > 0 {
			must(t, at.Close())
		}
		at = next
	}
	fd, err := unix.Openat(int(at.Fd()), "leaf", unix.O_CREAT|unix.O_WRONLY, 0o600)
	must(t, err, unix.Close(fd), at.Close())
}

func TestRemoveTreeTakesAllAndOnlyThat(t *testing.T) {
	base, outside := t.TempDir(), t.TempDir()
	keep := filepath.Join(outside, "keep")
	must(t, os.WriteFile(keep, []byte("mine"), 0o600))
	jail := filepath.Join(base, "jail")
	must(t,
		os.MkdirAll(filepath.Join(jail, "root/dev"), 0o700),
		os.Symlink(outside, filepath.Join(jail, "root/out")),
		os.Symlink("../../..", filepath.Join(jail, "root/up")),
		os.Symlink("/proc/self/root", filepath.Join(jail, "root/magic")),
		os.Link(keep, filepath.Join(jail, "root/image")),
		os.Mkdir(filepath.Join(jail, "deep-1"), 0o700),
		os.WriteFile(filepath.Join(jail, "deep-2"), nil, 0o600),
		unix.Mkfifo(filepath.Join(jail, "root/log"), 0o600),
		os.WriteFile(filepath.Join(jail, "root/none"), nil, 0),
		os.Mkdir(filepath.Join(jail, "root/closed"), 0),
	)
	if os.Geteuid() == 0 { // nobody else can make one
		must(t, unix.Mknod(filepath.Join(jail, "root/dev/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	}
	listener, err := net.Listen("unix", filepath.Join(jail, "s"))
	must(t, err)
	defer func() { _ = listener.Close() }()
	for n := range 3 * namesAtOnce {
		must(t, os.WriteFile(filepath.Join(jail, "root", fmt.Sprint("file", n)), nil, 0o600))
	}
	nest(t, filepath.Join(jail, "root"), 150)

	dir := openTest(t, base)
	must(t, removeTree(t.Context(), int(dir.Fd()), "jail"))
	if entries, err := os.ReadDir(base); err != nil || len(entries) != 0 {
		t.Errorf("left: %v %v", entries, err)
	}
	if text, err := os.ReadFile(keep); err != nil || string(text) != "mine" {
		t.Errorf("what lay outside: %q %v", text, err)
	}
	must(t, removeTree(t.Context(), int(dir.Fd()), "jail"))
}

func TestRemoveTreeRefusesALinkInItsPlace(t *testing.T) {
	base, outside := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "keep"), nil, 0o600), os.Symlink(outside, filepath.Join(base, "jail")))
	if err := removeTree(t.Context(), int(openTest(t, base).Fd()), "jail"); err == nil {
		t.Error("a link was followed")
	}
	if _, err := os.Stat(filepath.Join(outside, "keep")); err != nil {
		t.Error(err)
	}
}

func TestRemoveTreeGoesOnAfterAnEnd(t *testing.T) {
	base := t.TempDir()
	jail := filepath.Join(base, "jail")
	must(t, os.Mkdir(jail, 0o700))
	nest(t, jail, 100)
	dir := openTest(t, base)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := removeTree(ctx, int(dir.Fd()), "jail"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	must(t, removeTree(t.Context(), int(dir.Fd()), "jail"))
}

func TestDialSocketRefusesWhatIsPlanted(t *testing.T) {
	base, outside := t.TempDir(), t.TempDir()
	listen := func(path string) {
		listener, err := net.Listen("unix", path)
		must(t, err)
		t.Cleanup(func() { _ = listener.Close() })
	}
	listen(filepath.Join(outside, "host.sock"))
	listen(filepath.Join(base, "good"))
	must(t,
		os.Symlink(filepath.Join(outside, "host.sock"), filepath.Join(base, "absolute")),
		os.Symlink("good", filepath.Join(base, "relative")),
		os.WriteFile(filepath.Join(base, "file"), nil, 0o600),
		os.Mkdir(filepath.Join(base, "dir"), 0o700),
		unix.Mkfifo(filepath.Join(base, "fifo"), 0o600),
	)
	dir := openTest(t, base)
	conn, err := dialSocket(t.Context(), int(dir.Fd()), "good")
	must(t, err)
	must(t, conn.Close())
	for name, want := range map[string]string{
		"absolute": "is no socket", "relative": "is no socket", "file": "is no socket", "dir": "is no socket",
		"fifo": "is no socket", "missing": "no such file", "../" + filepath.Base(outside) + "/host.sock": "cross-device", "/etc": "cross-device",
	} {
		if conn, err := dialSocket(t.Context(), int(dir.Fd()), name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want %q, got %v %v", name, want, conn, err)
		}
	}
}

func TestOpenRootFollowsNothing(t *testing.T) {
	base, outside := t.TempDir(), t.TempDir()
	v := &VMM{jails: openTest(t, base)}
	host := "sb-01hzzzzzzzzzzzzzzzzzzzzzzz"
	must(t, os.Mkdir(filepath.Join(base, host), 0o700), os.Symlink(outside, filepath.Join(base, host, rootName)))
	if _, err := v.openRoot(host); err == nil {
		t.Error("a root that is a link was opened")
	}
	for _, name := range []string{"", "..", "../x", "sb-x", "/etc"} {
		if _, err := v.openRoot(name); err == nil {
			t.Errorf("%q was opened", name)
		}
	}
}
