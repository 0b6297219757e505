package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fakeCgroups remembers which cgroups there are.
type fakeCgroups struct{ there []string }

func (f *fakeCgroups) make(id string) error            { f.there = append(f.there, id); return nil }
func (f *fakeCgroups) processes(string) ([]int, error) { return nil, nil }
func (f *fakeCgroups) kill(string) error               { return nil }
func (f *fakeCgroups) path(id string) string           { return "/sys/fs/cgroup/x/" + id }
func (f *fakeCgroups) remove(id string) error {
	f.there = slices.DeleteFunc(f.there, func(have string) bool { return have == id })
	return nil
}

// makeBares makes what a bare VM is prepared from, as whoever runs the test.
func makeBares(t *testing.T) (*bares, *fakeCgroups) {
	t.Helper()
	dir, err := os.MkdirTemp("", "b") // short: a socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"vmlinux", "initrd", "image", "scratch"} {
		if err := os.WriteFile(in(name), []byte(name), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	groups := &fakeCgroups{}
	return &bares{
		cgroups: groups, uidBase: os.Getuid() - 1, // the first VM is the test's own user: chown works
		shape: shape{
			kernel: in("vmlinux"), initrd: in("initrd"), image: in("image"), scratch: in("scratch"),
			cgroupMount: "/sys/fs/cgroup", chrootDir: in("j"), vcpus: 1, memMiB: 256,
			jailer: in("no-jailer"), firecracker: in("no-firecracker"),
		},
	}, groups
}

func jails(t *testing.T, b *bares) []string {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(b.shape.chrootDir, "firecracker", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// TestPrepareUndoesItself is the golden trace of a bare VM's preparation, and
// fails each of its effects in turn.
func TestPrepareUndoesItself(t *testing.T) {
	var trace []string
	b, groups := makeBares(t)
	b.trace = func(op string) error { trace = append(trace, op); return nil }
	vm, err := b.prepare(b.bootFiles(), b.shape.scratch)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"make cgroup", "make jail", "link vmlinux", "link initrd", "link image", "copy scratch", "listen for hello"}
	if !slices.Equal(trace, want) {
		t.Fatalf("trace is %q, want %q", trace, want)
	}
	if data, err := os.ReadFile(filepath.Join(vm.root, "scratch")); err != nil || string(data) != "scratch" {
		t.Errorf("scratch is %q, %v", data, err)
	}
	if err := vm.close(); err != nil || len(jails(t, b)) > 0 || len(groups.there) > 0 {
		t.Errorf("after close: %v, %v, %v", err, jails(t, b), groups.there)
	}
	for n, op := range want {
		b, groups := makeBares(t)
		broken := errors.New("broken")
		calls := 0
		b.trace = func(string) error {
			if calls++; calls > n {
				return broken
			}
			return nil
		}
		if _, err := b.prepare(b.bootFiles(), b.shape.scratch); !errors.Is(err, broken) || !strings.Contains(err.Error(), op) {
			t.Errorf("%s fails: %v", op, err)
		}
		if len(jails(t, b)) > 0 || len(groups.there) > 0 {
			t.Errorf("%s fails: left are %v and %v", op, jails(t, b), groups.there)
		}
	}
}

func TestBootThatFailsLeavesNothing(t *testing.T) {
	b, groups := makeBares(t)
	if _, err := b.bootFloor(t.Context()); err == nil || !strings.Contains(err.Error(), "jailer") {
		t.Errorf("without a jailer: %v", err)
	}
	if len(jails(t, b)) > 0 || len(groups.there) > 0 {
		t.Errorf("left are %v and %v", jails(t, b), groups.there)
	}
}

func TestCopySparseKeepsHoles(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	f, err := os.Create(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{0, 1 << 20, 5 << 20} {
		if _, err := f.WriteAt([]byte(fmt.Sprint("data at ", at)), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(f.Truncate(8<<20), f.Close()); err != nil {
		t.Fatal(err)
	}
	if err := copySparse(from, to, os.Getuid()); err != nil {
		t.Fatal(err)
	}
	a, _ := os.ReadFile(from)
	b, _ := os.ReadFile(to)
	if len(b) != 8<<20 || !slices.Equal(a, b) {
		t.Errorf("the copy of %d bytes is another file of %d", len(a), len(b))
	}
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func TestCopyWithoutZeros(t *testing.T) {
	for name, size := range map[string]int{"whole blocks": 4 * zeroBlock, "a last part": 4*zeroBlock + 100, "nothing": 0} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
			data := make([]byte, size)
			if size > 0 {
				data[0], data[2*zeroBlock+7] = 1, 2
			}
			if err := os.WriteFile(from, data, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := copyWithoutZeros(from, to); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, data) {
				t.Errorf("the copy is another file of %d bytes, %v", len(got), err)
			}
			var stat unix.Stat_t
			if err := unix.Stat(to, &stat); err != nil || stat.Mode&0o777 != 0o444 || stat.Blocks*512 > 2*zeroBlock {
				t.Errorf("mode %o, %d bytes on the disk, %v", stat.Mode, stat.Blocks*512, err)
			}
			if err := copyWithoutZeros(from, to); err == nil {
				t.Error("it wrote over a file that is there")
			}
		})
	}
}

// TestDialGuest talks to a device that answers as Firecracker's does, with the
// stream's first byte right behind the answer.
func TestDialGuest(t *testing.T) {
	for _, test := range []struct{ name, answer, wrong string }{
		{"it answers", "OK 1073741824\nx", ""},
		{"it closes", "", "EOF"},
		{"no device", "HTTP/1.1 400 Bad Request\n", "answer"},
		{"no end of line", strings.Repeat("O", 100), "answer"},
	} {
		t.Run(test.name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			listener, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			asked := make(chan string, 1)
			go func() {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				line, _ := bufio.NewReader(conn).ReadString('\n')
				asked <- line
				_, _ = io.WriteString(conn, test.answer)
			}()
			conn, err := dialGuest(t.Context(), socket, 2000)
			if line := <-asked; line != "CONNECT 2000\n" {
				t.Errorf("it was asked %q", line)
			}
			if test.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), test.wrong) {
					t.Errorf("error is %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if rest, err := io.ReadAll(conn); err != nil || string(rest) != "x" {
				t.Errorf("the stream begins with %q, %v", rest, err)
			}
		})
	}
}

func TestConfigIsCheckedAtOnce(t *testing.T) {
	_, err := Run(context.Background(), Config{Rounds: 0, Only: []string{"warm"}, StateDir: "here", CgroupMount: "/a", CgroupRoot: "/a/../b", NetnsDir: "/n"})
	for _, want := range []string{"0 rounds", `no figure "warm"`, `"here"`, `"/a/../b"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %s: %v", want, err)
		}
	}
}
