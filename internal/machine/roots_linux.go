package machine

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

//go:embed hostroot
var hostroot embed.FS

// Debian releases of the two roots. QEMU's must not follow the outer machine's. Up to 10.1 its emulated VMRUN and #VMEXIT write a
// processor's pending interrupts without a lock, beside threads that set others; Debian 13 has a later one in its backports.
const (
	qemuSuite = "trixie"
	qemuFrom  = "trixie-backports"
	hostSuite = "bookworm"
	// hostDiskGiB is the host root's size; its overlay can grow to that and no further.
	hostDiskGiB = 6
	// recipeVersion goes up when the Go code below changes what it builds.
	recipeVersion = "1"
)

var qemuPackages = []string{"qemu-system-x86", "seabios"}

// addBackports is a hook of mmdebstrap: the suite's own mirror again with its backports, of which only QEMU and its firmware are taken.
const addBackports = `sed -n 's/^\(deb .*\) ` + qemuSuite + ` main$/\1 ` + qemuFrom + ` main/p' "$1/etc/apt/sources.list" > "$1/etc/apt/sources.list.d/backports.list"
printf 'Package: qemu-* seabios ipxe-qemu\nPin: release n=` + qemuFrom + `\nPin-Priority: 990\n' > "$1/etc/apt/preferences.d/backports"`

// lean leaves out of a root what nobody reads there.
var lean = []string{
	"--variant=minbase",
	"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*",
	"--dpkgopt=path-exclude=/usr/share/locale/*", "--dpkgopt=path-exclude=/usr/share/info/*",
}

// fetchKernel is a hook of mmdebstrap: it downloads the package behind Debian's cloud kernel by the new root's own package
// lists, so that the outer machine's release does not matter. To install it would bring initramfs-tools along.
const fetchKernel = `mkdir "$1/kernel" && cd "$1/kernel" && export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" &&
apt-get -o APT::Sandbox::User=root download "$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p')"`

// unpackKernel runs in the new root and leaves /vmlinuz, the modules, and what exactly the root was built from.
const unpackKernel = `cd /kernel; dpkg -x *.deb tree
mv tree/lib/modules /usr/lib/; mv tree/boot/vmlinuz-* /vmlinuz; cd /; rm -r /kernel
release=$(ls /usr/lib/modules); depmod "$release"
dpkg-query -W > /packages.txt; printf 'linux-image\t%s\n' "$release" >> /packages.txt`

func qemuRoot() recipe {
	return recipe{
		name:  "qemu",
		parts: [][]byte{[]byte(recipeVersion), []byte(qemuSuite), []byte(strings.Join(qemuPackages, ",")), []byte(strings.Join(lean, " ")), []byte(addBackports)},
		build: func(ctx context.Context, dir string, log io.Writer) error {
			args := append(slices.Clone(lean), "--include="+strings.Join(qemuPackages, ","), "--setup-hook="+addBackports, qemuSuite, dir)
			if err := command(ctx, log, "mmdebstrap", args...); err != nil {
				return err
			}
			version, err := exec.CommandContext(ctx, "chroot", dir, "dpkg-query", "-W", "-f", "${Version}", qemuPackages[0]).Output()
			if err != nil {
				return fmt.Errorf("read QEMU's release: %w", err)
			}
			return errors.Join(os.WriteFile(filepath.Join(dir, "qemu-release"), version, 0o644), os.Mkdir(filepath.Join(dir, "vm"), 0o755))
		},
	}
}

// hostBase builds the packages of the host root as a directory tree "root", with vmlinuz and packages.txt (what exactly it was
// built from) beside it. It needs the network; everything of ours comes later.
func hostBase(extra []string) recipe {
	packages := append(strings.Fields(hostText("packages")), extra...)
	return recipe{
		name:  "hostbase",
		parts: [][]byte{[]byte(recipeVersion), []byte(hostSuite), []byte(strings.Join(packages, ",")), []byte(strings.Join(lean, " ")), []byte(fetchKernel), []byte(unpackKernel)},
		build: func(ctx context.Context, dir string, log io.Writer) error {
			root := filepath.Join(dir, "root")
			args := append(slices.Clone(lean), "--architectures=amd64", "--include="+strings.Join(packages, ","), "--customize-hook="+fetchKernel, hostSuite, root)
			if err := command(ctx, log, "mmdebstrap", args...); err != nil {
				return err
			}
			if err := command(ctx, log, "chroot", root, "sh", "-ec", unpackKernel); err != nil {
				return err
			}
			for _, name := range []string{"vmlinuz", "packages.txt"} {
				if err := os.Rename(filepath.Join(root, name), filepath.Join(dir, name)); err != nil {
					return fmt.Errorf("place %s: %w", name, err)
				}
			}
			return nil
		},
	}
}

// hostRoot builds host.img, vmlinuz, initrd and packages.txt from the base built before.
func hostRoot(base string) recipe {
	r := recipe{name: "host", parts: [][]byte{[]byte(recipeVersion), []byte(filepath.Base(base))}}
	// Walking an embedded tree cannot fail, and its order is fixed.
	_ = fs.WalkDir(hostroot, "hostroot", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			text, _ := hostroot.ReadFile(name)
			r.parts = append(r.parts, []byte(name), text)
		}
		return err
	})
	r.build = func(ctx context.Context, dir string, log io.Writer) error {
		root := filepath.Join(dir, "root")
		if err := command(ctx, log, "cp", "-a", filepath.Join(base, "root"), filepath.Join(base, "vmlinuz"), filepath.Join(base, "packages.txt"), dir); err != nil {
			return err
		}
		if err := errors.Join(furnish(root), writeInitrd(root, filepath.Join(dir, "initrd"))); err != nil {
			return err
		}
		// No journal: nothing is ever written back to this disk.
		if err := command(ctx, log, "mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", "-d", root, filepath.Join(dir, "host.img"), fmt.Sprintf("%dG", hostDiskGiB)); err != nil {
			return err
		}
		return os.RemoveAll(root)
	}
	return r
}

func hostText(name string) string {
	text, err := hostroot.ReadFile("hostroot/" + name)
	if err != nil {
		panic("embedded file is missing: " + name)
	}
	return string(text)
}

// furnish puts our files, masks and wants into the host's root.
func furnish(root string) error {
	err := fs.WalkDir(hostroot, "hostroot/files", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := hostroot.ReadFile(name)
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if strings.Contains(name, "/sbin/") {
			mode = 0o755
		}
		to := filepath.Join(root, strings.TrimPrefix(name, "hostroot/files"))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		return writeFile(to, text, mode)
	})
	units := filepath.Join(root, "etc/systemd/system")
	wants := filepath.Join(units, "multi-user.target.wants")
	// What packages enabled is not ours to keep: this host starts what is listed, and nothing else.
	err = errors.Join(err, os.RemoveAll(wants), os.RemoveAll(filepath.Join(units, "timers.target.wants")), os.MkdirAll(wants, 0o755), os.MkdirAll(filepath.Join(root, "var/lib/microvm"), 0o700), os.MkdirAll(filepath.Join(root, "root/.ssh"), 0o700))
	link := func(target, name string) {
		if rerr := os.Remove(name); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
		err = errors.Join(err, os.Symlink(target, name))
	}
	for _, unit := range strings.Fields(hostText("masked")) {
		link("/dev/null", filepath.Join(units, unit))
	}
	for _, unit := range strings.Fields(hostText("wanted")) {
		link("../"+unit, filepath.Join(wants, unit))
	}
	link("/lib/systemd/system/multi-user.target", filepath.Join(units, "default.target"))
	keys, gerr := filepath.Glob(filepath.Join(root, "etc/ssh/ssh_host_*"))
	err = errors.Join(err, gerr)
	for _, k := range keys { // made by the package for everybody: each machine brings its own
		err = errors.Join(err, os.Remove(k))
	}
	return errors.Join(err,
		os.WriteFile(filepath.Join(root, "etc/machine-id"), []byte("6d6963726f766d2d656d756c61746564\n"), 0o444),
		os.WriteFile(filepath.Join(root, "etc/hosts"), []byte("127.0.0.1 localhost\n::1 localhost\n"), 0o644),
		os.WriteFile(filepath.Join(root, "etc/fstab"), nil, 0o644))
}

// writeInitrd makes the kernel's first root from the host root's own busybox and modules; not compressed, since the
// emulated kernel would unpack it slowly.
func writeInitrd(root, to string) error {
	release, err := os.ReadDir(filepath.Join(root, "usr/lib/modules"))
	if err != nil || len(release) != 1 {
		return fmt.Errorf("find the host kernel's modules: %d releases, %w", len(release), err)
	}
	busybox, err := os.ReadFile(filepath.Join(root, "bin/busybox"))
	if err != nil {
		return fmt.Errorf("read busybox: %w", err)
	}
	var out, order bytes.Buffer
	c := &cpioWriter{w: &out}
	for _, d := range []string{"bin", "dev", "m", "proc", "root"} {
		c.add(d, syscall.S_IFDIR|0o755, 0, 0, nil)
	}
	c.add("dev/console", syscall.S_IFCHR|0o600, 5, 1, nil)
	c.add("bin/busybox", syscall.S_IFREG|0o755, 0, 0, busybox)
	c.add("init", syscall.S_IFREG|0o755, 0, 0, []byte(hostText("init")))
	for _, m := range strings.Fields(hostText("modules")) {
		text, err := os.ReadFile(filepath.Join(root, "usr/lib/modules", release[0].Name(), "kernel", m+".ko"))
		if err != nil {
			return fmt.Errorf("read module: %w", err)
		}
		c.add("m/"+path.Base(m)+".ko", syscall.S_IFREG|0o644, 0, 0, text)
		fmt.Fprintln(&order, path.Base(m))
	}
	c.add("m/order", syscall.S_IFREG|0o644, 0, 0, order.Bytes())
	if err := c.close(); err != nil {
		return fmt.Errorf("write initrd: %w", err)
	}
	return writeFile(to, out.Bytes(), 0o644)
}

// command runs a build step in a mount namespace of its own, so that what it mounts is gone when it ends, however it ends.
func command(ctx context.Context, log io.Writer, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return fmt.Errorf("run %s: %w", name, err)
	}
	return nil
}
