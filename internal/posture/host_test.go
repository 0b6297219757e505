package posture

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
)

// fixture is a host on paper.
type fixture struct {
	nft    error
	tun    error
	mounts map[string]Mount
	broken error // of every Mount
}

var _ System = fixture{}

func (f fixture) Run(_ context.Context, name string, args ...string) (string, error) {
	return name + " " + strings.Join(args, " ") + " v1", f.nft
}
func (f fixture) Tun() error { return f.tun }
func (f fixture) Mount(path string) (Mount, error) {
	if f.broken != nil {
		return Mount{}, f.broken
	}
	if m, ok := f.mounts[path]; ok {
		return m, nil
	}
	return Mount{}, &fs.PathError{Op: "stat", Path: path, Err: fs.ErrNotExist}
}

const (
	unified = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	hybrid  = "30 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)

func root(release, mounts, controllers string) fstest.MapFS {
	tree := fstest.MapFS{}
	for name, text := range map[string]string{
		"proc/sys/kernel/osrelease": release, "proc/self/mountinfo": mounts, "sys/fs/cgroup/cgroup.controllers": controllers,
	} {
		if text != "" {
			tree[name] = &fstest.MapFile{Data: []byte(text)}
		}
	}
	return tree
}

func (f Finding) check(t *testing.T, name string, status Status, read string) {
	t.Helper()
	if f.Status != status || !strings.Contains(f.Read, read) {
		t.Errorf("%s: %s, read %q; want %s and %q", name, f.Status, f.Read, status, read)
	}
	if f.ID == "" || f.Wanted == "" || f.Read == "" || (f.Fix == "") != (f.Status == OK) {
		t.Errorf("%s: incomplete: %+v", name, f)
	}
}

func TestKernel(t *testing.T) {
	for release, want := range map[string]Status{
		"6.1.0-57-cloud-amd64\n": OK, "6.1.0\n": OK, "6.12.3+deb13-arm64\n": OK, "7.0.1\n": OK, "10.0\n": OK,
		"6.0.19\n": Fail, "5.10.0-30\n": Fail, "4.19\n": Fail, "": Unknown, "linux\n": Unknown,
	} {
		Reader{Root: root(release, "", "")}.Kernel().check(t, "kernel "+release, want, "")
	}
	Reader{Root: root("6.12.3\n", "", "")}.Kernel().check(t, "a series between", OK, "tested by its makers on")
	if f := (Reader{Root: root("6.1.99\n", "", "")}).Kernel(); f.Read != "6.1.99" {
		t.Errorf("a tested series has a note: %q", f.Read)
	}
}

func TestCgroup(t *testing.T) {
	const all = "cpuset cpu io memory hugetlb pids rdma misc\n"
	cases := []struct {
		name, mounts, controllers string
		status                    Status
		read                      string
	}{
		{"v2", unified, all, OK, "v2 with cpuset, cpu"},
		{"v1 and v2", hybrid, all, Fail, "tmpfs is mounted"},
		{"none", "24 1 8:1 / / rw - ext4 /dev/vda rw\n", all, Fail, "nothing is mounted"},
		{"memory switched off by the firmware", unified, "cpuset cpu io pids\n", Fail, "missing: memory"},
		{"cpuset is not cpu", unified, "cpuset io memory pids\n", Fail, "missing: cpu"},
		{"empty", unified, "\n", Fail, "missing: cpu, memory, pids, io"},
		{"controllers cannot be read", unified, "", Unknown, "could not be read"},
		{"mounts cannot be read", "", all, Unknown, "could not be read"},
		{"covered by a later mount", unified + "50 30 0:40 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n", all, Fail, "tmpfs"},
	}
	for _, c := range cases {
		Reader{Root: root("", c.mounts, c.controllers)}.Cgroup().check(t, c.name, c.status, c.read)
	}
}

func TestTools(t *testing.T) {
	read := func(f fixture) Reader { return Reader{System: f} }
	read(fixture{}).NFT(t.Context()).check(t, "nft", OK, "nft --version")
	read(fixture{nft: errors.New("run nft: not found")}).NFT(t.Context()).check(t, "no nft", Fail, "not found")
	read(fixture{}).Tun().check(t, "tun", OK, "")
	read(fixture{tun: syscall.ENODEV}).Tun().check(t, "no tun driver", Fail, "no such device")
	read(fixture{tun: &fs.PathError{Op: "open", Path: "/dev/net/tun", Err: syscall.EACCES}}).Tun().check(t, "tun as a user", Unknown, "permission")
	Reader{UID: 0}.Privilege().check(t, "root", OK, "uid 0")
	Reader{UID: 1000}.Privilege().check(t, "user", Warn, "uid 1000")
}

func TestDisk(t *testing.T) {
	free := func(bytes uint64) Reader {
		return Reader{System: fixture{mounts: map[string]Mount{"/var": {Device: 1, Free: bytes}}}}
	}
	free(20<<30).Disk("/var/lib/microvm").check(t, "room", OK, "20.0 GiB free on the file system of /var")
	free(10<<30-1).Disk("/var/lib/microvm").check(t, "little", Warn, "")
	free(2<<30-1).Disk("/var/lib/microvm").check(t, "none", Fail, "")
	Reader{System: fixture{broken: syscall.EIO}}.Disk("/var/lib/microvm").check(t, "broken disk", Unknown, "input/output")
}

func TestOneFileSystem(t *testing.T) {
	const dir = "/srv/mv"
	with := func(top Mount, subs map[string]Mount) Reader {
		mounts := map[string]Mount{dir: top}
		for name, m := range subs {
			mounts[dir+"/"+name] = m
		}
		return Reader{System: fixture{mounts: mounts}}
	}
	one := Mount{Device: 7}
	with(one, map[string]Mount{"bin": one, "jails": one}).OneFileSystem(dir).check(t, "one", OK, "2 folders")
	with(one, nil).OneFileSystem(dir).check(t, "empty", OK, "")
	with(one, map[string]Mount{"bin": one, "images": {Device: 8}, "jails": {Device: 9}}).OneFileSystem(dir).
		check(t, "split", Fail, "images is on another file system; jails is on another")
	with(Mount{Device: 7, NoDev: true}, nil).OneFileSystem(dir).check(t, "nodev", Fail, "nodev")
	with(Mount{Device: 7, NoExec: true}, nil).OneFileSystem(dir).check(t, "noexec", Fail, "noexec")
	Reader{System: fixture{broken: syscall.EACCES}}.OneFileSystem(dir).check(t, "closed", Unknown, "permission")
}

func TestArtifact(t *testing.T) {
	name := filepath.Join(t.TempDir(), "vmlinux")
	if err := os.WriteFile(name, []byte("kernel"), 0o644); err != nil {
		t.Fatal(err)
	}
	good := Artifact{
		Name: "guest-kernel", Version: "1", Supported: true, Pinned: true, Installed: true, Where: "state directory",
		Files: []PinnedFile{{Path: name, SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte("kernel")))}},
	}
	with := func(change func(*Artifact)) Finding {
		a := good
		a.Files = append([]PinnedFile(nil), good.Files...)
		change(&a)
		return a.Check()
	}
	with(func(*Artifact) {}).check(t, "good", OK, "1 in the state directory")
	with(func(a *Artifact) { a.Files[0].SHA256 = strings.Repeat("0", 64) }).check(t, "changed", Fail, "wanted 0000")
	with(func(a *Artifact) { a.Files[0].Path += "x" }).check(t, "gone", Fail, "is missing")
	with(func(a *Artifact) { a.Files[0].Path = filepath.Dir(name) }).check(t, "a directory", Unknown, "not a regular file")
	with(func(a *Artifact) { a.Files = nil }).check(t, "nowhere", Fail, "neither")
	with(func(a *Artifact) { a.Installed, a.Where = false, "cache" }).check(t, "only cached", Warn, "not installed")
	with(func(a *Artifact) { a.Supported = false }).check(t, "old", Warn, "out of support")
	with(func(a *Artifact) { a.Pinned = false }).check(t, "foreign", Warn, "not a version that this program knows")
	with(func(a *Artifact) { a.Err = errors.New("broken record") }).check(t, "unreadable", Unknown, "broken record")
}

func TestWorst(t *testing.T) {
	order := []Status{OK, Warn, Unknown, Fail}
	for i, worst := range order {
		var findings []Finding
		for _, status := range order[:i+1] {
			findings = append([]Finding{{Status: status}}, findings...)
		}
		if got := Worst(findings); got != worst {
			t.Errorf("worst of %d is %s, want %s", i+1, got, worst)
		}
	}
	if Worst(nil) != OK {
		t.Error("nothing is not OK")
	}
}

// TestLiveReader: on any machine every finding is complete, and nothing that
// could not be read is OK.
func TestLiveReader(t *testing.T) {
	findings := LiveReader().Host(t.Context(), filepath.Join(t.TempDir(), "state"), KVMReport{Verdict: Absent, Detail: "not looked at"})
	seen := map[string]bool{}
	for _, f := range findings {
		f.check(t, f.ID, f.Status, "")
		if _, known := rank[f.Status]; !known || seen[f.ID] {
			t.Errorf("status or id: %+v", f)
		}
		seen[f.ID] = true
	}
	for _, id := range []string{"root", "kvm", "kernel", "cgroup", "nft", "tun", "disk", "one-file-system"} {
		if !seen[id] {
			t.Errorf("no finding %s", id)
		}
	}
}
