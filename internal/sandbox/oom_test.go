package sandbox_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microvmd/microvm/internal/sandbox"
)

// TestWhoEndedAVMM: the host's OOM killer is told from anybody else; where the
// kernel does not say, it is a death like any, and the log says so.
func TestWhoEndedAVMM(t *testing.T) {
	for _, c := range []struct {
		name   string
		harm   func(w *world, host string)
		reason sandbox.Reason
		after  time.Duration
		logged string
	}{
		{"a crash, or a kill -9", func(w *world, host string) { w.host.Die(host) }, sandbox.ReasonVMDied, 0, ""},
		{"its guest, whose agent is gone", func(w *world, host string) { w.host.Reboot(host) }, sandbox.ReasonAgentDied, 0, ""},
		{"its guest, which is not told", func(w *world, host string) {
			w.host.Fail("vmm.ended", errors.New("injected"))
			w.host.Reboot(host)
		}, sandbox.ReasonVMDied, 0, "injected"},
		{"the OOM killer", func(w *world, host string) { w.host.OOMKill(host) }, sandbox.ReasonHostOOM, 0, "OOM killer ended the VMM"},
		{"the OOM killer, which is not told", func(w *world, host string) {
			w.host.Fail("cgroup.oom", errors.New("injected"))
			w.host.OOMKill(host)
		}, sandbox.ReasonVMDied, 0, "injected"},
		{"the OOM killer, of which no answer comes", func(w *world, host string) {
			w.host.Hang("cgroup.oom", true)
			w.host.OOMKill(host)
		}, sandbox.ReasonVMDied, limits.StepTimeout, "cannot tell"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log lockedBuffer
				w := newWorld(t, limits)
				w.logger = slog.New(slog.NewTextHandler(&log, nil))
				l := w.recovered()
				sb, err := l.Create(t.Context(), sandbox.Spec{Image: "python", Idle: -1})
				if err != nil {
					t.Fatal(err)
				}
				other, err := l.Create(t.Context(), sandbox.Spec{Image: "python", Idle: -1})
				if err != nil {
					t.Fatal(err)
				}
				session, err := l.Use(t.Context(), sb.ID)
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				c.harm(w, hostName(sb.ID))
				<-session.Done()
				if took := time.Since(began); took != c.after || session.Reason() != c.reason {
					t.Errorf("ended after %s: %s", took, session.Reason())
				}
				settled()
				row, err := w.store.Sandbox(t.Context(), sb.ID)
				if err != nil || row.State != sandbox.Stopped || row.StopReason != sandbox.StopFailed || row.Reason != c.reason {
					t.Errorf("%+v %v", row, err)
				}
				if text := log.Bytes(); !bytes.Contains(text, []byte(c.logged)) || c.logged == "" && bytes.Contains(text, []byte("OOM")) {
					t.Errorf("the log: %s", text)
				}
				if _, err := l.Touch(t.Context(), other.ID); err != nil {
					t.Errorf("the other sandbox: %v", err)
				}
				w.drained(l)
			})
		})
	}
}

// TestADeleteOfAnOOMKilledVMM: the first cause is kept.
func TestADeleteOfAnOOMKilledVMM(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, limits)
		l := w.recovered()
		sb, err := l.Create(t.Context(), sandbox.Spec{Image: "python", Idle: -1})
		if err != nil {
			t.Fatal(err)
		}
		w.host.Hang("cgroup.kill", true)
		deleted := make(chan error, 1)
		go func() { _, err := l.Delete(t.Context(), sb.ID); deleted <- err }()
		settled()
		w.host.OOMKill(hostName(sb.ID))
		w.host.Hang("cgroup.kill", false)
		if err := <-deleted; err != nil {
			t.Error(err)
		}
		if got, err := l.Get(t.Context(), sb.ID); err != nil || got.Reason != sandbox.ReasonDeleted {
			t.Errorf("%+v %v", got, err)
		}
		w.drained(l)
	})
}

// TestABootThatTheOOMKillerEnds is a boot that failed, and the log says of what.
func TestABootThatTheOOMKillerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedBuffer
		w := newWorld(t, limits)
		w.logger = slog.New(slog.NewTextHandler(&log, nil))
		l := w.recovered()
		w.host.Hang("agent.hello", true)
		created := make(chan error, 1)
		go func() { _, err := l.Create(t.Context(), spec); created <- err }()
		settled()
		page, err := l.List(t.Context(), sandbox.Query{Limit: 1})
		if err != nil || len(page.Data) != 1 {
			t.Fatal(page, err)
		}
		w.host.OOMKill(hostName(page.Data[0].ID))
		if err := <-created; err == nil {
			t.Error("created")
		}
		settled()
		if got, err := l.Get(t.Context(), page.Data[0].ID); err != nil || got.Reason != sandbox.ReasonBootFailed {
			t.Errorf("%+v %v", got, err)
		}
		if text := string(log.Bytes()); !strings.Contains(text, "OOM killer ended the VMM") {
			t.Errorf("the log: %s", text)
		}
		w.drained(l)
	})
}
