package guest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestFileSystemKind(t *testing.T) {
	t.Parallel()
	image := func(offset int, magic uint32) []byte {
		disk := make([]byte, 4096)
		binary.LittleEndian.PutUint32(disk[offset:], magic)
		return disk
	}
	for want, disk := range map[string][]byte{
		"erofs": image(1024, 0xe0f5e1e2), "ext4": image(1024+0x38, 0xef53), "": image(0, 0xef53), " ": make([]byte, 1030),
	} {
		got, err := fileSystemKind(bytes.NewReader(disk))
		if known := len(want) > 1; known && got != want || known != (err == nil) {
			t.Errorf("%q: got %q, %v", want, got, err)
		}
	}
}

func TestShareOfMemory(t *testing.T) {
	t.Parallel()
	for memory, want := range map[int64]int64{64 << 20: keepLeast, 256 << 20: 8 << 20, 1 << 30: 32 << 20, 64 << 30: keepMost} {
		if got := keepTotal(memory); got != want {
			t.Errorf("%d MiB: got %d, want %d", memory>>20, got, want)
		}
	}
}

// What a hostile guest put in the place of a file is neither followed nor
// waited for.
func TestReplaceFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fifo, link, other := filepath.Join(dir, "fifo"), filepath.Join(dir, "link"), filepath.Join(dir, "other")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(other, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, link, filepath.Join(dir, "new/file")} {
		if err := replaceFile(path, "text", 0o444); err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(path)
		if err != nil || info.Mode() != 0o444 || info.Size() != 4 {
			t.Errorf("%s: %v %v", path, info, err)
		}
	}
	if text, err := os.ReadFile(other); err != nil || string(text) != "untouched" {
		t.Errorf("the target of a link: %q %v", text, err)
	}
}

// The tree on a plain directory: names and files as the kernel's, no kernel.
func TestTree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tree, err := openTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "2"), 0o755); err != nil {
		t.Fatal(err)
	}
	a, err := tree.make() // which was there before
	b, err2 := tree.make()
	if err != nil || err2 != nil || a.name != "1" || b.name != "3" {
		t.Fatal(a, err, b, err2)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, a.name, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if n := a.oomKills(); n != 0 {
		t.Errorf("oom kills without a controller: %d", n)
	}
	write("memory.events", "low 0\noom 7\noom_kill 3\noom_group_kill 0\n")
	if a.events, err = openAt(a.fd, "memory.events", 0); err != nil {
		t.Fatal(err)
	}
	write("cgroup.procs", "12\n"+strings.Repeat("34\n", 1000))
	if n := a.oomKills(); n != 3 {
		t.Errorf("oom kills: %d", n)
	}
	if pids, err := a.processes(); err != nil || len(pids) != 1001 || pids[0] != 12 || pids[1000] != 34 {
		t.Errorf("%d processes, %v", len(pids), err)
	}
	write("cgroup.procs", strings.Repeat("1\n", maxGroupFile))
	if pids, err := a.processes(); err == nil {
		t.Errorf("%d processes of a file without bounds", len(pids))
	}
	a.retire() // not empty yet: it stays
	if _, err := os.Stat(filepath.Join(dir, a.name)); err != nil || !tree.leftover[a] {
		t.Errorf("a cgroup that is in use: %v", err)
	}
	for _, name := range []string{"memory.events", "cgroup.procs"} {
		if err := os.Remove(filepath.Join(dir, a.name, name)); err != nil {
			t.Fatal(err)
		}
	}
	b.retire() // looks at a again
	for _, g := range []*group{a, b} {
		if _, err := os.Stat(filepath.Join(dir, g.name)); !os.IsNotExist(err) || len(tree.leftover) != 0 {
			t.Errorf("an empty cgroup stays: %v", err)
		}
		pids, err := g.processes()
		if n := g.oomKills(); n != 0 || len(pids) != 0 || err != nil || g.kill() != nil {
			t.Errorf("a cgroup that is removed: %d oom kills, processes %v, %v", n, pids, err)
		}
	}
	// The next program's is there already; one that guest root removed is made anew.
	if err := os.Remove(filepath.Join(dir, "4")); err != nil {
		t.Fatal(err)
	}
	c, err := tree.make()
	if err != nil || c.name != "5" {
		t.Fatal(c, err)
	}
	c.retire()
	tree.close()
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// What is placed in the upper layer is what replaceFile would make of it, in a
// directory like the image's.
func TestPlaceNames(t *testing.T) {
	t.Parallel()
	names, err := nameFiles("sb-1")
	if err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"as the image's": 0o711, "none in the image": 0} {
		lower, upper := t.TempDir(), filepath.Join(t.TempDir(), "upper")
		if mode != 0 {
			if err := os.Mkdir(filepath.Join(lower, "etc"), mode); err != nil {
				t.Fatal(err)
			}
		}
		if err := placeNames(lower, upper, names); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if info, err := os.Stat(filepath.Join(upper, "etc")); err != nil || info.Mode().Perm() != cmp.Or(mode, 0o755) {
			t.Errorf("%s: etc is %v, %v", name, info.Mode(), err)
		}
		for _, file := range names {
			path := filepath.Join(upper, "etc", file.name)
			text, err := os.ReadFile(path)
			info, statErr := os.Stat(path)
			if err != nil || statErr != nil || string(text) != file.text || info.Mode() != file.mode {
				t.Errorf("%s: %s is %q: %v %v", name, file.name, text, err, statErr)
			}
		}
	}
	lower := t.TempDir()
	if err := os.Symlink("usr", filepath.Join(lower, "etc")); err != nil {
		t.Fatal(err)
	}
	if err := placeNames(lower, t.TempDir(), names); err == nil {
		t.Error("an /etc that is a link was taken")
	}
}

func TestNameFiles(t *testing.T) {
	t.Parallel()
	one, err := nameFiles("sb-1")
	two, err2 := nameFiles("sb-1")
	if err != nil || err2 != nil || len(one) != 3 {
		t.Fatal(one, err, err2)
	}
	for i, file := range one {
		switch file.name {
		case "hosts":
			if !strings.Contains(file.text, "127.0.1.1\tsb-1\n") {
				t.Errorf("hosts: %q", file.text)
			}
		case "hostname":
			if file.text != "sb-1\n" {
				t.Errorf("hostname: %q", file.text)
			}
		default:
			if len(file.text) != 33 || file.text == two[i].text || file.mode != 0o444 {
				t.Errorf("machine-id: %q, then %q", file.text, two[i].text)
			}
		}
	}
}

func TestOpenTemp(t *testing.T) {
	t.Parallel()
	const open = os.ModeDir | os.ModeSticky | 0o777
	dir := t.TempDir()
	closed := filepath.Join(dir, "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{closed, closed, filepath.Join(dir, "new")} {
		if err := openTemp(path); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != open {
			t.Errorf("%s: %v %v", path, info, err)
		}
	}
}
