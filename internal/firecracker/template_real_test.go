//go:build kvm && linux

package firecracker_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
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

func TestTemplate(t *testing.T) {
	h, ctx := newHost(t, nil), deadline(t)
	clone := h.template(t, ctx, h.plan(70))
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
	for range 2 {
		h.restore(t, ctx, clone)
		client := h.Client(clone.Host)
		timed(t, "conf", func() error {
			_, err := client.Configure(ctx, guestwire.Configure{
				Generation: 1, Hostname: "test", TimeNS: time.Now().UnixNano(), Entropy: bytes.Repeat([]byte{7}, 32),
				User: "user", Workdir: "/workspace", Env: map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"},
			})
			return err
		})
		for range 3 { timed(t, "true", func() error {
			id := fmt.Sprintf("exe_01HZZZZZZZZZZZZZZZZZZZZZZ%d", time.Now().UnixNano()%10)
			_, err := client.Start(ctx, id, guestwire.Start{Cmd: "true"})
			for err == nil {
				var exit *guestwire.Exit
				exit, err = client.Pull(ctx, id, guestwire.Pull{WaitMS: 1000}, func(guestwire.Frame) error { return nil })
				if exit != nil { break }
			}
			return err
		}) }
		h.remove(t, clone.Host)
	}
	_, _, _, _, _, _, _ = bytes.Equal, rand.Read, errors.Is, fmt.Sprint, exec.Command, strings.Trim, guestwire.Protocol
	_ = os.Args
}
