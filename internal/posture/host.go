package posture

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// System is what a Reader needs of a host beyond reading files. LiveSystem is
// the real one.
type System interface {
	// Run runs a program and returns the first line that it prints.
	Run(ctx context.Context, name string, args ...string) (string, error)
	// Tun opens the tun device and asks for its features.
	Tun() error
	// Mount describes the file system that holds a path.
	Mount(path string) (Mount, error)
}

// Mount is what is read about the file system under a path.
type Mount struct {
	Device uint64 // st_dev
	Free   uint64 // bytes that may still be written, without the reserve of root
	NoDev  bool
	NoExec bool
}

// Reader reads one host.
type Reader struct {
	Root   fs.FS // the host's root directory: /proc and /sys are read below it
	System System
	UID    int // effective user id of this program
}

// Kernel wants Linux 6.1 or later: cgroup.kill came with 5.14, memory.peak
// with 5.19, and 6.1 is the oldest long-term series with both.
func (r Reader) Kernel() Finding {
	f := Finding{ID: "kernel", Wanted: "Linux 6.1 or later", Fix: "install a newer kernel and reboot"}
	text, err := fs.ReadFile(r.Root, "proc/sys/kernel/osrelease")
	if err != nil {
		return f.unknown(err)
	}
	release := strings.TrimSpace(string(text))
	f.Read = release
	match := regexp.MustCompile(`^(\d+)\.(\d+)`).FindStringSubmatch(release)
	if match == nil {
		return f.unknown(fmt.Errorf("%.80q is no kernel release", release))
	}
	major, _ := strconv.Atoi(match[1]) // digits, by the pattern
	minor, _ := strconv.Atoi(match[2])
	if major < 6 || major == 6 && minor < 1 {
		f.Status = Fail
		return f
	}
	// A note and no warning: distributions ship series between these.
	if series := match[0]; !slices.Contains([]string{"6.1", "6.18"}, series) {
		f.Read += " (Firecracker is tested by its makers on 6.1 and 6.18)"
	}
	return f.ok()
}

// Cgroup wants the unified hierarchy with the controllers that hold a sandbox.
func (r Reader) Cgroup() Finding {
	wanted := []string{"cpu", "memory", "pids", "io"}
	f := Finding{
		ID: "cgroup", Wanted: "cgroup v2 on /sys/fs/cgroup with " + strings.Join(wanted, ", "),
		Fix: "boot with systemd.unified_cgroup_hierarchy=1, and without cgroup_disable= on the kernel's command line",
	}
	mounts, err := fs.ReadFile(r.Root, "proc/self/mountinfo")
	if err != nil {
		return f.unknown(err)
	}
	kind := ""
	for line := range strings.SplitSeq(string(mounts), "\n") {
		// proc(5): mount point is field 5; the type follows a lone dash.
		before, after, ok := strings.Cut(line, " - ")
		if fields := strings.Fields(before); ok && len(fields) > 4 && fields[4] == "/sys/fs/cgroup" {
			kind, _, _ = strings.Cut(after, " ") // the last mount covers the others
		}
	}
	if kind != "cgroup2" {
		f.Status, f.Read = Fail, "nothing is mounted on /sys/fs/cgroup"
		if kind != "" {
			f.Read = fmt.Sprintf("%s is mounted on /sys/fs/cgroup, which is not v2", kind)
		}
		return f
	}
	text, err := fs.ReadFile(r.Root, "sys/fs/cgroup/cgroup.controllers")
	if err != nil {
		return f.unknown(err)
	}
	have := strings.Fields(string(text))
	f.Read = "v2 with " + strings.Join(have, ", ")
	var missing []string
	for _, name := range wanted {
		if !slices.Contains(have, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		f.Status = Fail
		f.Read += "; missing: " + strings.Join(missing, ", ")
		return f
	}
	return f.ok()
}

// NFT wants the nft program, which writes the packet filter.
func (r Reader) NFT(ctx context.Context) Finding {
	f := Finding{ID: "nft", Wanted: "nft, which sandboxes with a network need", Fix: "install nftables (Debian: apt-get install nftables)"}
	line, err := r.System.Run(ctx, "nft", "--version")
	if err != nil {
		f.Status, f.Read = Fail, err.Error()
		return f
	}
	f.Read = line
	return f.ok()
}

// Tun wants a tun device that can be opened.
func (r Reader) Tun() Finding {
	f := Finding{ID: "tun", Wanted: "/dev/net/tun, usable", Fix: "load it: modprobe tun"}
	err := r.System.Tun()
	switch {
	case err == nil:
		f.Read = "opened, and it named its features"
		return f.ok()
	case errors.Is(err, fs.ErrPermission):
		f.Fix = "repeat as root"
		return f.unknown(err)
	default:
		f.Status, f.Read = Fail, err.Error()
		return f
	}
}

// Privilege wants root, which the daemon needs.
func (r Reader) Privilege() Finding {
	f := Finding{ID: "root", Wanted: "uid 0: the daemon needs it, and without it some things here cannot be read", Fix: "repeat with sudo"}
	f.Read = fmt.Sprintf("uid %d", r.UID)
	if r.UID != 0 {
		f.Status = Warn
		return f
	}
	return f.ok()
}

// Space the state directory should have free, in bytes: images, and the
// scratch disks of a few sandboxes; and what it cannot do without.
const (
	wantedSpace  = 10 << 30
	minimumSpace = 2 << 30
)

// Disk wants room in the state directory.
func (r Reader) Disk(stateDir string) Finding {
	f := Finding{ID: "disk", Wanted: fmt.Sprintf("%d GiB free for %s", wantedSpace>>30, stateDir), Fix: "free some space, or put the state directory elsewhere"}
	at, mount, err := r.nearest(stateDir)
	if err != nil {
		return f.unknown(err)
	}
	f.Read = fmt.Sprintf("%.1f GiB free on the file system of %s", float64(mount.Free)/(1<<30), at)
	switch {
	case mount.Free < minimumSpace:
		f.Status = Fail
	case mount.Free < wantedSpace:
		f.Status = Warn
	default:
		return f.ok()
	}
	return f
}

// nearest describes the path, or its closest parent that is there.
func (r Reader) nearest(dir string) (string, Mount, error) {
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		mount, err := r.System.Mount(at)
		if !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			return at, mount, err
		}
	}
}

// OneFileSystem wants the whole state directory on one file system, where
// devices and programs work: files reach a jail as hard links, and the jailer
// makes its device nodes there.
func (r Reader) OneFileSystem(stateDir string) Finding {
	f := Finding{
		ID: "one-file-system", Wanted: stateDir + " and all below it on one file system, neither nodev nor noexec",
		Fix: "mount one file system on " + stateDir + " with dev and exec, and nothing below it",
	}
	at, top, err := r.nearest(stateDir)
	if err != nil {
		return f.unknown(err)
	}
	var faults []string
	if top.NoDev {
		faults = append(faults, at+" is mounted nodev")
	}
	if top.NoExec {
		faults = append(faults, at+" is mounted noexec")
	}
	seen := 0
	for _, sub := range []string{"bin", "kernel", "guest", "images", "boot", "jails"} {
		mount, err := r.System.Mount(filepath.Join(stateDir, sub))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return f.unknown(err)
		}
		seen++
		if mount.Device != top.Device {
			faults = append(faults, sub+" is on another file system")
		}
	}
	if len(faults) > 0 {
		f.Status, f.Read = Fail, strings.Join(faults, "; ")
		return f
	}
	f.Read = fmt.Sprintf("%s, with %d folders of it there, is one file system", at, seen)
	return f.ok()
}

// Artifact is something that should be installed.
type Artifact struct {
	Name      string
	Version   string
	Supported bool   // still gets security fixes
	Pinned    bool   // this program's manifest has this version
	Where     string // "state directory" or "cache"
	Installed bool   // in the state directory
	Files     []PinnedFile
	Err       error // why nothing is known about it, or nil
}

// PinnedFile is a file with the content that it should have.
type PinnedFile struct {
	Path   string // absolute
	SHA256 string // 64 hexadecimal digits
}

// Check reads every file of the artifact and compares it with its checksum.
func (a Artifact) Check() Finding {
	f := Finding{
		ID: "artifact-" + a.Name, Wanted: a.Name + " installed, with the right checksums", Fix: "microvm setup",
	}
	if a.Err != nil {
		return f.unknown(a.Err)
	}
	if len(a.Files) == 0 {
		f.Status, f.Read = Fail, "neither installed nor in the cache"
		return f
	}
	for _, file := range a.Files {
		sum, err := sumFile(file.Path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			f.Status, f.Read = Fail, file.Path+" is missing"
			return f
		case err != nil:
			return f.unknown(err)
		case sum != file.SHA256:
			f.Status = Fail
			f.Read = fmt.Sprintf("%s has sha256 %s, wanted %s", file.Path, sum, file.SHA256)
			f.Fix = "find out who changed it, then: microvm setup"
			return f
		}
	}
	f.Read = fmt.Sprintf("%s in the %s, %d files as recorded", a.Version, a.Where, len(a.Files))
	switch {
	case !a.Installed:
		f.Status = Warn
		f.Read += "; not installed"
	case !a.Pinned:
		f.Status = Warn
		f.Read += "; not a version that this program knows"
	case !a.Supported:
		f.Status = Warn
		f.Read += "; out of support: no security fixes"
		f.Fix = "microvm setup, where the release page can be reached"
	default:
		return f.ok()
	}
	return f
}

func sumFile(name string) (string, error) {
	info, err := os.Lstat(name)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("read %s: not a regular file", name)
	}
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close() //nolint:errcheck // only read
	hash := sha256.New()
	if _, err := io.Copy(hash, io.LimitReader(file, info.Size())); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

func (f Finding) ok() Finding {
	f.Status, f.Fix = OK, ""
	return f
}

func (f Finding) unknown(err error) Finding {
	f.Status, f.Read = Unknown, "could not be read: "+err.Error()
	return f
}

// Host runs every check of a host for a state directory. The KVM report comes
// from KVM, which may take seconds.
func (r Reader) Host(ctx context.Context, stateDir string, kvm KVMReport) []Finding {
	return []Finding{
		r.Privilege(), kvm.Finding(), r.Kernel(), r.Cgroup(), r.NFT(ctx), r.Tun(), r.Disk(stateDir), r.OneFileSystem(stateDir),
	}
}
