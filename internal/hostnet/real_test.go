//go:build kvm && linux

package hostnet

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// These tests need root: they make and mount network namespaces.

func TestRealEmptyNamespace(t *testing.T) {
	before, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	n, err := New(Config{Dir: filepath.Join(t.TempDir(), "ns"), Instance: "unit"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := n.Remove(context.Background()); err != nil {
				t.Error(err)
			}
		}
		if mounts, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(mounts), n.path) {
			t.Error("still mounted")
		}
	})
	inode := func() uint64 {
		path, err := n.Empty(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var stat unix.Stat_t
		if err := unix.Stat(path, &stat); err != nil {
			t.Fatal(err)
		}
		return stat.Ino
	}
	first := inode()
	if inode() != first {
		t.Error("a second call made another one")
	}
	if after, _ := os.Readlink("/proc/self/ns/net"); after != before {
		t.Errorf("our own namespace went from %s to %s", before, after)
	}
	if interfaces, err := net.Interfaces(); err != nil || len(interfaces) == 0 {
		t.Errorf("%v %v", interfaces, err)
	}

	// A file that a dead daemon left without its mount.
	if err := unix.Unmount(n.path, 0); err != nil {
		t.Fatal(err)
	}
	if inode() == 0 {
		t.Error("not made anew")
	}

	// With lo up it is not the namespace that was made.
	fd, err := unix.Open(n.path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	err = onThread(func() error {
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			return err
		}
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(socket) }()
		request, err := unix.NewIfreq("lo")
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_UP)
		return unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request)
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Empty(t.Context()); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("a namespace with lo up: %v", err)
	}
}

func TestRealForeignThingsAreRefused(t *testing.T) {
	for kind, want := range map[string]string{"net": "host's own", "uts": "not of network"} {
		n, err := New(Config{Dir: t.TempDir(), Instance: "unit"})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(n.path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(fmt.Sprintf("/proc/self/ns/%s", kind), n.path, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Empty(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", kind, err)
		}
		if err := n.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
