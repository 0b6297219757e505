package execution_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/testkit"
)

// says waits until the program has written text to stdout.
func (f *fixture) says(t *testing.T, e execution.Execution, text string) {
	t.Helper()
	follower := f.follow(t, e, execution.Position{})
	for all := ""; !strings.Contains(all, text); {
		event, err := follower.Next(t.Context())
		if err != nil {
			t.Fatalf("%q, then %v", all, err)
		}
		all += string(event.Data)
	}
}

// TestACancelIsCanceled whatever the program makes of it.
func TestACancelIsCanceled(t *testing.T) {
	f := newFixture(t, testkit.GuestAgent(t.TempDir()))
	for name, c := range map[string]struct {
		script string
		cancel execution.Cancel
		code   int // -1: none
		signal string
	}{
		"killed":          {"echo up; exec sleep 600", execution.Cancel{}, -1, "SIGKILL"},
		"killed by TERM":  {"echo up; exec sleep 600", execution.Cancel{Signal: "SIGTERM"}, -1, "SIGTERM"},
		"exits 0 on TERM": {"trap 'exit 0' TERM; echo up; while :; do sleep 0.01; done", execution.Cancel{Signal: "SIGTERM"}, 0, ""},
		"exits 7 on INT":  {"trap 'exit 7' INT; echo up; while :; do sleep 0.01; done", execution.Cancel{Signal: "SIGINT"}, 7, ""},
		"ignores TERM":    {"trap '' TERM; echo up; while :; do sleep 0.01; done", execution.Cancel{Signal: "SIGTERM", Grace: time.Second}, -1, "SIGKILL"},
		"stopped":         {"echo up; kill -STOP $$", execution.Cancel{}, -1, "SIGKILL"},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := f.Start(t.Context(), f.sb.ID, sh(c.script))
			if err != nil {
				t.Fatal(err)
			}
			f.says(t, e, "up\n")
			if e, err = f.Cancel(t.Context(), f.sb.ID, e.ID, c.cancel); err != nil {
				t.Fatal(err)
			}
			code := -1
			if e.ExitCode != nil {
				code = *e.ExitCode
			}
			if e.Status != execution.Canceled || e.Reason != execution.ByCaller || code != c.code || e.Signal != c.signal {
				t.Errorf("%+v", e)
			}
			if _, err := f.Cancel(t.Context(), f.sb.ID, e.ID, c.cancel); !fault.Is(err, fault.ExecutionNotRunning) {
				t.Errorf("a second cancel: %v", err)
			}
		})
	}
}

// TestACancelIsShownWhileItIsCarriedOut, and a harder one cuts its grace short.
func TestACancelIsShownWhileItIsCarriedOut(t *testing.T) {
	f := newFixture(t, testkit.GuestAgent(t.TempDir()))
	e, err := f.Start(t.Context(), f.sb.ID, sh("trap '' TERM; echo up; while :; do sleep 0.01; done"))
	if err != nil {
		t.Fatal(err)
	}
	f.says(t, e, "up\n")
	answered := make(chan execution.Execution, 1)
	go func() {
		e, _ := f.Cancel(t.Context(), f.sb.ID, e.ID, execution.Cancel{Signal: "SIGTERM", Grace: 5 * time.Minute})
		answered <- e
	}()
	eventually(t, func() bool {
		now, err := f.Get(t.Context(), f.sb.ID, e.ID)
		stored, stale := f.store.Execution(t.Context(), f.sb.ID, e.ID)
		return errors.Join(err, stale) != nil || now.Status == execution.Running && now.Reason == execution.ByCaller && stored.Reason == execution.ByCaller
	})
	if e, err = f.Cancel(t.Context(), f.sb.ID, e.ID, execution.Cancel{}); err != nil || e.Status != execution.Canceled || e.Signal != "SIGKILL" {
		t.Errorf("%+v %v", e, err)
	}
	if e := <-answered; e.Status != execution.Canceled {
		t.Errorf("the first cancel: %+v", e)
	}
}

func TestBadCancelsAreRefusedByName(t *testing.T) {
	f := newFixture(t, testkit.GuestAgent(t.TempDir()))
	e, err := f.Start(t.Context(), f.sb.ID, sh("exec sleep 600"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cancel execution.Cancel
		param  string
	}{
		{execution.Cancel{Signal: "TERM"}, "signal"},
		{execution.Cancel{Signal: "SIGFUN"}, "signal"},
		{execution.Cancel{Grace: time.Second}, "grace_seconds"},
		{execution.Cancel{Signal: "SIGTERM", Grace: -time.Second}, "grace_seconds"},
		{execution.Cancel{Signal: "SIGTERM", Grace: time.Hour}, "grace_seconds"},
	} {
		_, err := f.Cancel(t.Context(), f.sb.ID, e.ID, c.cancel)
		var refusal *fault.Error
		if !errors.As(err, &refusal) || refusal.Param != c.param {
			t.Errorf("%+v: %v", c.cancel, err)
		}
	}
	if e, err = f.Get(t.Context(), f.sb.ID, e.ID); err != nil || e.Status != execution.Running || e.Reason != "" {
		t.Errorf("%+v %v", e, err)
	}
}

// TestTheCauseSurvivesTheDaemon: one that dies between a kill and the end that it
// makes leaves the cause behind, so that nobody takes the kill for the program's
// own end.
func TestTheCauseSurvivesTheDaemon(t *testing.T) {
	for name, end := range map[string]struct {
		timeout time.Duration
		cancel  bool
		status  execution.Status
		reason  execution.Reason
	}{
		"cancel":     {time.Hour, true, execution.Canceled, execution.ByCaller},
		"timeout":    {time.Second, false, execution.TimedOut, execution.Timeout},
		"no, itself": {time.Hour, false, execution.Exited, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, testkit.GuestAgent(t.TempDir()))
			store := &sickStore{Store: n.store}
			first := n.start(store)
			gate := filepath.Join(t.TempDir(), "gate")
			e := first.begin(t, execution.Spec{Cmd: "sh", Args: []string{"-c", "until [ -e " + gate + " ]; do sleep 0.01; done; kill -9 $$"}, Timeout: end.timeout})
			store.sick.Store(true) // no end is stored from here on
			switch {
			case end.cancel:
				go func() { _, _ = first.Cancel(t.Context(), e.Sandbox, e.ID, execution.Cancel{}) }()
			case end.reason == "":
				touch(t, gate)
			}
			eventually(t, func() bool { return store.refused.Load() > 0 })
			first.leave(t, false)
			next := n.start(n.store)
			if e, _ = next.ended(t, e); e.Status != end.status || e.Reason != end.reason || e.Signal != "SIGKILL" {
				t.Errorf("%+v", e)
			}
			next.leave(t, true)
		})
	}
}

// TestACauseIsToldWhenItsSandboxIsGone: a cancel that was under way when the
// daemon died is a cancel, although the sandbox did not live to see its effect.
func TestACauseIsToldWhenItsSandboxIsGone(t *testing.T) {
	n := newNode(t, testkit.GuestAgent(t.TempDir()))
	first := n.start(n.store)
	e := first.begin(t, execution.Spec{Cmd: "sleep", Args: []string{"600"}})
	first.leave(t, false)
	e.Reason = execution.ByCaller
	if err := n.store.CauseExecution(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	n.late.Store(int64(time.Hour)) // the sandbox's TTL is over as well
	next := n.start(n.store)
	if e, _ = next.ended(t, e); e.Status != execution.Canceled || e.Reason != execution.ByCaller {
		t.Errorf("%+v", e)
	}
	next.leave(t, true)
}
