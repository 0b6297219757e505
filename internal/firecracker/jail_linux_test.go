package firecracker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/image"
	"github.com/microvmd/microvm/internal/sandbox"
)

const testHost = "sb-01hzzzzzzzzzzzzzzzzzzzzzzz"

func testPlan(rootfs string) sandbox.Plan {
	return sandbox.Plan{
		ID: "sb_01HZZZZZZZZZZZZZZZZZZZZZZZ", Host: testHost, Slot: 3, VCPUs: 2, MemMiB: 512, ScratchMiB: 64,
		Image: image.Image{ID: "python", Path: rootfs},
	}
}

// testConfig has a script for a Firecracker: enough for what comes before
// Launch. The tests that use it need root, as the daemon does: they make files
// that belong to other uids.
func testConfig(t *testing.T) Config {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root, as make test does: it makes files of other uids")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"firecracker": "#!/bin/sh\necho Firecracker v1.17.0\n", "jailer": "jailer", "vmlinux": "kernel", "guestd": "agent", "rootfs": "image",
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755)) //nolint:gosec // binaries
	}
	return Config{
		StateDir: filepath.Join(dir, "state"), anyMount: true,
		FirecrackerPath: filepath.Join(dir, "firecracker"), JailerPath: filepath.Join(dir, "jailer"),
		KernelPath: filepath.Join(dir, "vmlinux"), GuestdPath: filepath.Join(dir, "guestd"),
		CgroupMount: dir, CgroupDir: filepath.Join(dir, "cgroup/a"),
		Netns: func(context.Context, sandbox.Plan) (string, error) { return "/run/netns/empty", nil },
	}
}

func newTest(t *testing.T, conf Config) *VMM {
	t.Helper()
	v, err := New(t.Context(), conf)
	must(t, err)
	t.Cleanup(func() { must(t, v.Close()) })
	return v
}

func TestConfigTellsEverythingAtOnce(t *testing.T) {
	err := (&Config{StateDir: "relative", KernelPath: "/a/../b", CgroupMount: "/x", CgroupDir: "/y", UIDBase: 10}).complete()
	for _, want := range []string{"StateDir", "FirecrackerPath", "JailerPath", "KernelPath", "GuestdPath", "not below", "UIDBase", "no Netns"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
}

func TestPrepareMakesTheJail(t *testing.T) {
	conf := testConfig(t)
	var trace []string
	conf.Trace = func(op string) error {
		trace = append(trace, op)
		return nil
	}
	v := newTest(t, conf)
	if v.Version() != "1.17.0" {
		t.Errorf("version %s", v.Version())
	}
	plan := testPlan(filepath.Join(filepath.Dir(conf.StateDir), "rootfs"))
	must(t, v.Prepare(t.Context(), plan))
	hosts, err := v.List(t.Context())
	if err != nil || fmt.Sprint(hosts) != "["+testHost+"]" {
		t.Errorf("list %v %v", hosts, err)
	}
	if err := v.Prepare(t.Context(), plan); err == nil {
		t.Error("a jail was prepared twice")
	}

	root := filepath.Join(conf.StateDir, "jails/firecracker", testHost, "root")
	entries, err := os.ReadDir(root)
	must(t, err)
	var got []string
	for _, entry := range entries {
		var stat unix.Stat_t
		must(t, unix.Lstat(filepath.Join(root, entry.Name()), &stat))
		got = append(got, fmt.Sprintf("%s %o %d:%d", entry.Name(), stat.Mode, stat.Uid-uint32(v.conf.UIDBase), stat.Gid-uint32(v.conf.UIDBase)))
	}
	foreign := 1<<32 - DefaultUIDBase // root, seen from the base
	want := []string{
		fmt.Sprintf("image 100755 %d:%d", foreign, foreign), fmt.Sprintf("initrd 100444 %d:%d", foreign, foreign),
		"log 10600 3:3", "scratch 100600 3:3", "v.sock_1025 140600 3:3", fmt.Sprintf("vmlinux 100444 %d:%d", foreign, foreign),
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("jail:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	must(t, v.Remove(t.Context(), testHost))
	must(t, v.Remove(t.Context(), testHost))
	golden := `make state directory, make state directory, make state directory, make state directory, place firecracker, place jailer, place vmlinux, place initrd, remove old boot files, remove half-made templates, make blank scratch, make jail, link vmlinux, link initrd, link image, copy scratch, make log, listen for hello, make jail, remove jail, remove jail`
	if got := strings.Join(trace, ", "); got != golden {
		t.Errorf("trace:\n%s\nwant:\n%s", got, golden)
	}
}

func TestEachFailureOfPrepareIsUndoneByRemove(t *testing.T) {
	conf := testConfig(t)
	fail := ""
	injected := errors.New("injected")
	conf.Trace = func(op string) error {
		if op == fail {
			return injected
		}
		return nil
	}
	v := newTest(t, conf)
	plan := testPlan(filepath.Join(filepath.Dir(conf.StateDir), "rootfs"))
	for _, fail = range []string{"make blank scratch", "make jail", "link vmlinux", "link initrd", "link image", "copy scratch", "make log", "listen for hello"} {
		if err := v.Prepare(t.Context(), plan); !errors.Is(err, injected) || !strings.HasPrefix(err.Error(), fail+": ") {
			t.Errorf("%s: got %v", fail, err)
		}
		must(t, v.Remove(t.Context(), testHost))
		if hosts, err := v.List(t.Context()); err != nil || len(hosts) != 0 {
			t.Errorf("%s: left %v %v", fail, hosts, err)
		}
	}
	fail = ""
	must(t, v.Prepare(t.Context(), plan), v.Remove(t.Context(), testHost))
}

func TestPrepareRefusesAnImageThatOthersCanWrite(t *testing.T) {
	conf := testConfig(t)
	v := newTest(t, conf)
	dir := filepath.Dir(conf.StateDir)
	must(t, os.WriteFile(filepath.Join(dir, "open"), nil, 0o600), os.Chmod(filepath.Join(dir, "open"), 0o666),
		os.WriteFile(filepath.Join(dir, "closed"), nil, 0o600), os.WriteFile(filepath.Join(dir, "foreign"), nil, 0o444), os.Chown(filepath.Join(dir, "foreign"), 1, 1),
		os.Symlink("rootfs", filepath.Join(dir, "link")))
	for _, name := range []string{"open", "closed", "foreign", "link", "missing", "."} {
		if err := v.Prepare(t.Context(), testPlan(filepath.Join(dir, name))); err == nil || !strings.Contains(err.Error(), "link image: ") {
			t.Errorf("%s: got %v", name, err)
		}
		must(t, v.Remove(t.Context(), testHost))
	}
}

func TestRemoveRefusesWhileAProcessRuns(t *testing.T) {
	conf := testConfig(t)
	v := newTest(t, conf)
	must(t, v.Prepare(t.Context(), testPlan(filepath.Join(filepath.Dir(conf.StateDir), "rootfs"))))
	procs := filepath.Join(conf.CgroupDir, testHost, "cgroup.procs")
	must(t, os.MkdirAll(filepath.Dir(procs), 0o700), os.WriteFile(procs, []byte("17\n"), 0o600))
	if err := v.Remove(t.Context(), testHost); err == nil || !strings.Contains(err.Error(), "still run") {
		t.Errorf("got %v", err)
	}
	must(t, os.WriteFile(procs, nil, 0o600), v.Remove(t.Context(), testHost))
}

func TestBootFilesFollowTheirSources(t *testing.T) {
	conf := testConfig(t)
	first := newTest(t, conf).files
	if again := newTest(t, conf).files; again != first {
		t.Errorf("placed anew: %+v, before %+v", again, first)
	}
	must(t, os.WriteFile(conf.KernelPath, []byte("newer kernel"), 0o600))
	second := newTest(t, conf).files
	if second.kernel == first.kernel || second.initrd != first.initrd {
		t.Errorf("after a new kernel: %+v, before %+v", second, first)
	}
	if _, err := os.Stat(first.kernel); !os.IsNotExist(err) {
		t.Errorf("the old kernel is still there: %v", err)
	}
	data, err := os.ReadFile(second.kernel)
	if err != nil || string(data) != "newer kernel" {
		t.Errorf("%q %v", data, err)
	}
}

func TestStateDirMustBeRootsAlone(t *testing.T) {
	conf := testConfig(t)
	open := filepath.Join(filepath.Dir(conf.StateDir), "open")
	must(t, os.Mkdir(open, 0o700), os.Chmod(open, 0o777), os.Symlink("open", open+"-link")) //nolint:gosec // the fault
	for _, dir := range []string{open, open + "/below", open + "-link/below"} {
		conf.StateDir = dir
		if _, err := New(t.Context(), conf); err == nil || !strings.Contains(err.Error(), "check state directory") {
			t.Errorf("%s: got %v", dir, err)
		}
	}
}

func TestJailerArguments(t *testing.T) {
	v := &VMM{
		conf:  Config{StateDir: "/s", CgroupMount: "/sys/fs/cgroup", CgroupDir: "/sys/fs/cgroup/m.slice/m.service/a", UIDBase: 5000},
		files: bootFiles{firecracker: "/s/boot/x/firecracker"},
	}
	got := strings.Join(v.jailerArgs(testPlan("/i"), "/run/n"), " ")
	want := "--id " + testHost + " --exec-file /s/boot/x/firecracker --uid 5003 --gid 5003 --chroot-base-dir /s/jails" +
		" --cgroup-version 2 --parent-cgroup m.slice/m.service/a/" + testHost + " --netns /run/n --new-pid-ns" +
		" --resource-limit no-file=2048 --resource-limit fsize=553648128" +
		" -- --api-sock /a.sock --log-path /log --level Warning"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestRequests(t *testing.T) {
	var got []string
	for _, r := range requests(testPlan("/i"), bootArgs("amd64", false)) {
		body, err := json.Marshal(r.body)
		must(t, err)
		got = append(got, r.path+" "+string(body))
	}
	want := `/machine-config {"vcpu_count":2,"mem_size_mib":512,"smt":false,"track_dirty_pages":false}
/boot-source {"kernel_image_path":"vmlinux","initrd_path":"initrd","boot_args":"reboot=k panic=1 nomodule quiet loglevel=1 8250.nr_uarts=0 i8042.noaux i8042.nomux i8042.dumbkbd swiotlb=noforce random.trust_cpu=on"}
/drives/image {"drive_id":"image","path_on_host":"image","is_root_device":false,"is_read_only":true}
/drives/scratch {"drive_id":"scratch","path_on_host":"scratch","is_root_device":false,"is_read_only":false}
/vsock {"guest_cid":3,"uds_path":"v.sock"}
/actions {"action_type":"InstanceStart"}`
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
	for _, c := range []struct {
		arch  string
		debug bool
		want  string
	}{
		{"amd64", true, "reboot=k panic=1 nomodule console=ttyS0 loglevel=7 i8042.noaux i8042.nomux i8042.dumbkbd swiotlb=noforce random.trust_cpu=on"},
		{"arm64", false, "reboot=k panic=1 nomodule quiet loglevel=1 8250.nr_uarts=0 random.trust_cpu=on"},
	} {
		if got := bootArgs(c.arch, c.debug); got != c.want {
			t.Errorf("got\n%s\nwant\n%s", got, c.want)
		}
	}
}

func TestExitSaysWhatItMeans(t *testing.T) {
	for exit, want := range map[Exit]string{
		{}: "ended with code 0 (the guest rebooted or stopped)", {Code: 148}: "ended with code 148 (forbidden system call)",
		{Code: 7}: "ended with code 7 (unknown)", {Signal: unix.SIGKILL}: "ended by SIGKILL",
	} {
		if got := exit.String(); got != want || exit.ForbiddenCall() != (exit.Code == 148) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestHowAVMMEndedIsInTheLog(t *testing.T) {
	for name, c := range map[string]struct {
		exit Exit
		want string
	}{
		"by itself": {Exit{Code: 148}, `level=WARN msg="VMM ended by itself" sandbox=` + testHost + ` exit="ended with code 148 (forbidden system call)" log="a \x1b[2J line"`},
		"killed":    {Exit{Signal: unix.SIGKILL}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			conf := testConfig(t)
			conf.Log = slog.New(slog.NewTextHandler(&log, nil))
			v := newTest(t, conf)
			must(t, v.Prepare(t.Context(), testPlan(filepath.Join(filepath.Dir(conf.StateDir), "rootfs"))))
			i := v.instance(testHost)
			i.mu.Lock()
			i.log.keep([]byte("a \x1b[2J line"))
			i.exit = &c.exit
			i.mu.Unlock()
			must(t, v.Remove(t.Context(), testHost))
			if got := log.String(); !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
				t.Errorf("logged %s", got)
			}
		})
	}
}

func TestClientReachesAVMThatAnotherDaemonStarted(t *testing.T) {
	base := t.TempDir()
	root := filepath.Join(base, testHost, rootName)
	must(t, os.MkdirAll(root, 0o700))
	listener, err := net.Listen("unix", filepath.Join(root, vsockName))
	must(t, err)
	defer func() { _ = listener.Close() }()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				if line, err := readLine(conn, 32); err != nil || line != "CONNECT 1024" {
					t.Errorf("%q %v", line, err)
					return
				}
				_, _ = io.WriteString(conn, "OK 5\n")
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
					t.Error(err)
					return
				}
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
				silent(conn)
			}()
		}
	}()
	v := &VMM{jails: openTest(t, base), agents: map[string]*agent{}}
	client := v.Client(testHost)
	if v.Client(testHost) != client {
		t.Error("two clients for one guest")
	}
	must(t, client.Echo(t.Context(), "hi"))
	v.Release(testHost)
	v.Release(testHost)
	if v.Client(testHost) == client {
		t.Error("a released client came back")
	}
	if err := v.Client("sb-01hzzzzzzzzzzzzzzzzzzzzzz1").Echo(t.Context(), "hi"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an echo of nobody: %v", err)
	}
	v.Release(testHost)
	v.Release("sb-01hzzzzzzzzzzzzzzzzzzzzzz1")
}
