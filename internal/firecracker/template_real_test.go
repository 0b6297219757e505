//go:build kvm && linux

package firecracker_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/firecracker"
	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/ident"
	"github.com/microvmd/microvm/internal/sandbox"
)

// freeze boots a microVM to its hello and freezes it.
func (h *host) freeze(t *testing.T, ctx context.Context, plan sandbox.Plan) {
	t.Helper()
	h.launch(t, ctx, plan)
	timed(t, "start", func() error { return h.Start(ctx, plan) })
	timed(t, "hello", func() error { _, err := h.Hello(ctx, plan.Host); return err })
	timed(t, "freeze", func() error { return h.Freeze(ctx, plan) })
}

// template makes the template of a plan and returns the plan of its clones.
func (h *host) template(t *testing.T, ctx context.Context, plan sandbox.Plan) sandbox.Plan {
	t.Helper()
	h.freeze(t, ctx, plan)
	timed(t, "kill", func() error { return h.cgroups.Kill(ctx, plan.Host) })
	clone := h.plan(plan.Slot + 1)
	clone.Template = h.TemplateOf(plan)
	timed(t, "keep", func() error { return h.Keep(ctx, plan.Host, clone.Template) })
	h.remove(t, plan.Host)
	t.Cleanup(func() {
		if err := h.DropTemplate(context.Background(), clone.Template); err != nil {
			t.Error(err)
		}
	})
	return clone
}

// restore brings a clone up to its first echo.
func (h *host) restore(t *testing.T, ctx context.Context, plan sandbox.Plan) {
	t.Helper()
	began := time.Now()
	h.launch(t, ctx, plan)
	timed(t, "load", func() error { return h.Start(ctx, plan) })
	timed(t, "echo", func() error {
		for {
			try, cancel := context.WithTimeout(ctx, 5*time.Second)
			err := h.Client(plan.Host).Echo(try, "x")
			cancel()
			if err == nil || ctx.Err() != nil {
				return err
			}
			t.Log(err)
		}
	})
	t.Logf("restored in %v", time.Since(began))
}

func (h *host) configure(t *testing.T, ctx context.Context, plan sandbox.Plan) {
	t.Helper()
	entropy := make([]byte, 64)
	_, _ = rand.Read(entropy)
	timed(t, "conf", func() error {
		_, err := h.Client(plan.Host).Configure(ctx, guestwire.Configure{
			Generation: 1, Hostname: "test", TimeNS: time.Now().UnixNano(), Entropy: entropy,
			User: "user", Workdir: "/workspace", Env: map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"},
		})
		return err
	})
}

// python runs a script as root and returns what it prints.
func (h *host) python(t *testing.T, ctx context.Context, plan sandbox.Plan, script string) string {
	t.Helper()
	client, id := h.Client(plan.Host), ident.New(ident.Execution)
	var text [2]strings.Builder
	sink := guestwire.Sink{Output: func(f guestwire.Frame) error {
		_, err := text[f.Type-guestwire.StdoutFrame].Write(f.Payload)
		return err
	}}
	pull := guestwire.Pull{WaitMS: guestwire.MaxPullWait}
	exit, err := client.Start(ctx, id, guestwire.Start{Cmd: "python3", Args: []string{"-c", script}, User: "root", Pull: pull}, sink)
	for {
		if err != nil {
			t.Fatal(err)
		}
		if exit == nil {
			pull.Stdout, pull.Stderr = int64(text[0].Len()), int64(text[1].Len())
			exit, err = client.Pull(ctx, id, pull, sink)
			continue
		}
		if exit.ExitCode == nil || *exit.ExitCode != 0 {
			t.Errorf("python ended with %+v: %s", exit, text[1].String())
		}
		return text[0].String()
	}
}

// checkScratch proves that the disk which a clone found under the name of its
// template's is the one that it reads and writes: its page cache and the disk
// are of one mind where ext4 looks first, what is written is read back from the
// disk, and the kernel saw no fault.
const checkScratch = `
import mmap, os
def compare(n):
    disk = mmap.mmap(-1, n)
    os.readv(os.open("/dev/vdb", os.O_RDONLY | os.O_DIRECT), [disk])
    with open("/dev/vdb", "rb") as f:
        assert f.read(n) == disk[:], "the page cache is stale"
os.sync()
compare(256 << 10)
data = os.urandom(1 << 20)
with open("/workspace/file", "wb") as f:
    f.write(data)
os.sync()
compare(256 << 10)
with open("/proc/sys/vm/drop_caches", "w") as f:
    f.write("3")
with open("/workspace/file", "rb") as f:
    assert f.read() == data, "the disk is another"
log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
try:
    while True:
        line = os.read(log, 8192).decode(errors="replace")
        assert "EXT4-fs error" not in line and "EXT4-fs warning" not in line, line
except BlockingIOError:
    print("good")
`

func TestTemplate(t *testing.T) {
	h, ctx := newHost(t, nil), deadline(t)
	clone := h.template(t, ctx, h.plan(70))
	frozen := time.Now()
	dir := filepath.Join(need(t, "MICROVM_TEST_STATE"), "templates", clone.Template)
	for _, name := range []string{"memory", "state", "scratch"} {
		var stat unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, name), &stat); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d bytes, %d KiB on the disk", name, stat.Size, stat.Blocks/2)
		if stat.Uid != 0 || stat.Gid != 0 || stat.Mode&0o7333 != 0 {
			t.Errorf("%s: uid %d gid %d mode %o", name, stat.Uid, stat.Gid, stat.Mode)
		}
	}
	h.restore(t, ctx, clone)
	h.configure(t, ctx, clone)
	// CLOCK_REALTIME stood still while the template lay there.
	began := time.Now()
	var said float64
	_, err := fmt.Sscan(h.python(t, ctx, clone, "import time; print(time.time())"), &said)
	at := time.UnixMicro(int64(said * 1e6))
	if err != nil || at.Before(began.Add(-100*time.Millisecond)) || at.After(time.Now().Add(100*time.Millisecond)) {
		t.Errorf("the guest's clock says %v between %v and %v: %v", at, began, time.Now(), err)
	}
	if age := began.Sub(frozen); age < time.Second {
		t.Errorf("the template was too young to tell: %v", age)
	}
	if got := h.python(t, ctx, clone, checkScratch); got != "good\n" {
		t.Errorf("scratch: %q", got)
	}
	h.checkJail(t, clone)
}

// TestAFreezeCutShort ends a daemon amid a Freeze, and lets the next one adopt.
func TestAFreezeCutShort(t *testing.T) {
	var plan sandbox.Plan
	ctx, cut := deadline(t), func() error { return nil }
	h := newHost(t, func(c *firecracker.Config) {
		c.Trace = func(op string) error {
			if op == "create snapshot" {
				return cut()
			}
			return nil
		}
	})
	plan = h.plan(73)
	h.launch(t, ctx, plan)
	timed(t, "start", func() error { return h.Start(ctx, plan) })
	timed(t, "hello", func() error { _, err := h.Hello(ctx, plan.Host); return err })
	next := newHost(t, nil)
	errCut := errors.New("cut short")
	memory := filepath.Join(need(t, "MICROVM_TEST_STATE"), "jails/firecracker", plan.Host, "root/memory.new")
	for when, order := range map[string]func(stop func()) error{
		"after the pause": func(func()) error { return errCut },
		"amid the memory": func(stop func()) error {
			go func() {
				for ctx.Err() == nil {
					if stat, err := os.Stat(memory); err == nil && stat.Size() > 0 {
						stop()
						return
					}
				}
			}()
			return nil
		},
	} {
		short, stop := context.WithCancelCause(ctx)
		cut = func() error { return order(func() { stop(errCut) }) }
		if err := h.Freeze(short, plan); !errors.Is(err, errCut) && !errors.Is(err, context.Canceled) {
			t.Fatalf("%s: freeze: %v", when, err)
		}
		timed(t, "adopt", func() error { return next.Adopt(ctx, plan) })
		timed(t, "echo", func() error { return next.Client(plan.Host).Echo(ctx, "x") })
		if left, _ := filepath.Glob(filepath.Join(filepath.Dir(memory), "*.new")); len(left) > 0 {
			t.Errorf("%s: left %v", when, left)
		}
		stop(nil)
	}
	next.configure(t, ctx, plan)
	if got := next.python(t, ctx, plan, "print('up')"); got != "up\n" {
		t.Errorf("it says %q", got)
	}
}
