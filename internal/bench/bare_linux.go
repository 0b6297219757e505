package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
)

const (
	bareWait = 3 * time.Minute // for any one step of a bare VM, on an emulated host
	maxHello = 4 << 10         // bytes of the hello
	maxReply = 64 << 10        // bytes of a reply of the VMM
)

// shape is what a bare VM is made of: the files and limits of a sandbox.
type shape struct {
	jailer, firecracker    string // of the daemon's boot files
	kernel, initrd, image  string // hard-linked into each jail
	scratch                string // blank, copied into each jail
	vcpus, memMiB          int
	netns                  string
	cgroupMount, chrootDir string
}

// bootArgs is the boot line of a sandbox without debugging; what a sandbox
// really booted with is compared with it before anything is measured.
func bootArgs(arch string) string {
	line := "reboot=k panic=1 nomodule quiet loglevel=1 8250.nr_uarts=0"
	if arch == "amd64" {
		line += " i8042.noaux i8042.nomux i8042.dumbkbd swiotlb=noforce"
	}
	return line + " random.trust_cpu=on"
}

// bareVM is one microVM that nothing but this package drives.
type bareVM struct {
	id, root string // root is its jail's root directory
	uid, pid int
	hello    *net.UnixListener
	api      net.Conn
	replies  *bufio.Reader
	back     undo
}

// bares makes bare VMs, one at a time.
type bares struct {
	shape   shape
	cgroups cgroups
	uidBase int
	made    int // numbers ids and uids
	// trace, if set, is told each effect before it happens; an error of it is
	// that effect's failure. For tests.
	trace func(op string) error
}

func (b *bares) do(op string, f func() error) error {
	if b.trace != nil {
		if err := b.trace(op); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	if err := f(); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// prepare makes everything that a bare VM needs before its clock starts. files
// are the names in the jail and what is hard-linked there; scratch is copied.
// After an error nothing of it is left.
func (b *bares) prepare(files map[string]string, scratch string) (vm *bareVM, err error) {
	b.made++
	id := "bench-" + strconv.Itoa(b.made)
	vm = &bareVM{id: id, uid: b.uidBase + b.made, root: filepath.Join(b.shape.chrootDir, "firecracker", id, "root")}
	defer func() {
		if err != nil {
			err = errors.Join(err, vm.close())
			vm = nil
		}
	}()
	if err := b.do("make cgroup", func() error { return b.cgroups.make(id) }); err != nil {
		return vm, err
	}
	vm.back.add("remove cgroup", func() error { return b.cgroups.remove(id) })
	if err := b.do("make jail", func() error { return os.MkdirAll(vm.root, 0o700) }); err != nil {
		return vm, err
	}
	vm.back.add("remove jail", func() error { return os.RemoveAll(filepath.Dir(vm.root)) })
	for _, name := range []string{"vmlinux", "initrd", "image", "state", "memory"} {
		source, wanted := files[name]
		if !wanted {
			continue
		}
		if err := b.do("link "+name, func() error { return os.Link(source, filepath.Join(vm.root, name)) }); err != nil {
			return vm, err
		}
	}
	err = b.do("copy scratch", func() error { return copySparse(scratch, filepath.Join(vm.root, "scratch"), vm.uid) })
	if err != nil {
		return vm, err
	}
	err = b.do("listen for hello", func() error {
		path := filepath.Join(vm.root, fmt.Sprintf("v.sock_%d", guestwire.HelloPort))
		listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return err
		}
		vm.hello = listener
		vm.back.add("stop listening", listener.Close)
		return os.Chown(path, vm.uid, vm.uid)
	})
	return vm, err
}

// end kills what is in the cgroup and collects it.
func (b *bares) end(vm *bareVM) error {
	err := b.cgroups.kill(vm.id)
	if vm.pid > 0 {
		err = errors.Join(err, reap(vm.pid))
		vm.pid = 0
	}
	return err
}

// close ends the VM and removes all of it.
func (vm *bareVM) close() error {
	if vm.api != nil {
		_ = vm.api.Close()
	}
	return vm.back.run()
}

// spawn starts the jailer and returns when the VMM takes connections.
func (b *bares) spawn(ctx context.Context, vm *bareVM) error {
	parent, err := filepath.Rel(b.shape.cgroupMount, b.cgroups.path(vm.id))
	if err != nil {
		return err
	}
	uid := strconv.Itoa(vm.uid)
	cmd := exec.CommandContext(ctx, b.shape.jailer,
		"--id", vm.id, "--exec-file", b.shape.firecracker, "--uid", uid, "--gid", uid,
		"--chroot-base-dir", b.shape.chrootDir, "--cgroup-version", "2", "--parent-cgroup", parent,
		"--netns", b.shape.netns, "--new-pid-ns",
		"--", "--api-sock", "/a.sock", "--level", "Warning")
	cmd.Env, cmd.Dir = []string{}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a Ctrl-C is ours to handle
	vm.back.add("kill VMM", func() error { return b.end(vm) })
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("jailer: %w", err)
	}
	pids, err := b.cgroups.processes(vm.id)
	if err != nil {
		return err
	}
	if len(pids) != 1 {
		return fmt.Errorf("%d processes in the VMM's cgroup, want 1", len(pids))
	}
	vm.pid = pids[0]
	for last := time.Now().Add(bareWait); ; time.Sleep(tick) {
		conn, err := net.Dial("unix", filepath.Join(vm.root, "a.sock"))
		if err == nil {
			vm.api, vm.replies = conn, bufio.NewReader(conn)
			return conn.SetDeadline(last)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if left, err := b.cgroups.processes(vm.id); err != nil || len(left) == 0 {
			return errors.Join(err, errors.New("the VMM ended before its API answered"))
		}
		if time.Now().After(last) {
			return fmt.Errorf("the VMM's API does not answer: %w", err)
		}
	}
}

// call makes one request of the VMM's API.
func (vm *bareVM) call(ctx context.Context, method, path, body string) error {
	stop := context.AfterFunc(ctx, func() { _ = vm.api.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	request, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	if err := request.Write(vm.api); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	reply, err := http.ReadResponse(vm.replies, request)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	text, err := io.ReadAll(io.LimitReader(reply.Body, maxReply))
	err = errors.Join(err, reply.Body.Close())
	if err == nil && reply.StatusCode != http.StatusNoContent {
		err = fmt.Errorf("status %d: %.200q", reply.StatusCode, text)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

// boot is the floor of a create: from before the jailer is started until the
// agent's hello was read.
func (b *bares) boot(ctx context.Context, vm *bareVM) (time.Duration, error) {
	began := time.Now()
	if err := b.spawn(ctx, vm); err != nil {
		return 0, err
	}
	for _, r := range []struct{ path, body string }{
		{"/machine-config", fmt.Sprintf(`{"vcpu_count":%d,"mem_size_mib":%d}`, b.shape.vcpus, b.shape.memMiB)},
		{"/boot-source", fmt.Sprintf(`{"kernel_image_path":"vmlinux","initrd_path":"initrd","boot_args":%q}`, bootArgs(runtime.GOARCH))},
		{"/drives/image", `{"drive_id":"image","path_on_host":"image","is_root_device":false,"is_read_only":true}`},
		{"/drives/scratch", `{"drive_id":"scratch","path_on_host":"scratch","is_root_device":false,"is_read_only":false}`},
		{"/vsock", `{"guest_cid":3,"uds_path":"v.sock"}`},
		{"/actions", `{"action_type":"InstanceStart"}`},
	} {
		if err := vm.call(ctx, http.MethodPut, r.path, r.body); err != nil {
			return 0, err
		}
	}
	conn, err := vm.acceptHello(ctx)
	if err != nil {
		return 0, fmt.Errorf("wait for hello: %w", err)
	}
	took := time.Since(began)
	// The guest closes first; a host that does makes the VMM log a broken pipe.
	_, _ = io.WriteString(conn, "ok\n")
	_, _ = io.CopyN(io.Discard, conn, maxHello)
	return took, conn.Close()
}

func (vm *bareVM) acceptHello(ctx context.Context) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { _ = vm.hello.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := vm.hello.SetDeadline(time.Now().Add(bareWait)); err != nil {
		return nil, err
	}
	conn, err := vm.hello.Accept()
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(bareWait))
	line, err := bufio.NewReader(io.LimitReader(conn, maxHello)).ReadBytes('\n')
	var hello guestwire.Hello
	if err == nil {
		err = json.Unmarshal(line, &hello)
	}
	if err == nil && hello.Protocol != guestwire.Protocol {
		err = fmt.Errorf("protocol %d: %w", hello.Protocol, guestwire.ErrProtocol)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// bootFloor is one bare boot, whole.
func (b *bares) bootFloor(ctx context.Context) (took time.Duration, err error) {
	vm, err := b.prepare(b.bootFiles(), b.shape.scratch)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, vm.close()) }()
	return b.boot(ctx, vm)
}

func (b *bares) bootFiles() map[string]string {
	return map[string]string{"vmlinux": b.shape.kernel, "initrd": b.shape.initrd, "image": b.shape.image}
}
