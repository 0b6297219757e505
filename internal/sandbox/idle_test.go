package sandbox_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/sandbox"
)

// createdIdle makes a sandbox that is reclaimed after a minute without use.
func createdIdle(t *testing.T, f *fixture, idle time.Duration) sandbox.Sandbox {
	t.Helper()
	sb, err := f.Create(t.Context(), sandbox.Spec{Image: "python", TTL: time.Hour, Idle: idle})
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// ended waits for the end of a sandbox without using it, and tells when it was.
func ended(t *testing.T, f *fixture, id string) (sandbox.Sandbox, time.Time) {
	t.Helper()
	for {
		sb, err := f.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if sb.State == sandbox.Stopped {
			return sb, sb.Stopped
		}
		time.Sleep(time.Second) // of the bubble's clock
		synctest.Wait()
	}
}

func TestAnIdleSandboxIsReclaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limits)
		began := time.Now()
		sb := createdIdle(t, f, time.Minute)
		gone, at := ended(t, f, sb.ID)
		if gone.StopReason != sandbox.StopIdle || gone.Reason != sandbox.ReasonIdle || at.Sub(began).Round(time.Second) != time.Minute {
			t.Errorf("%+v after %s", gone, at.Sub(began))
		}
		if _, err := f.Use(t.Context(), sb.ID); !fault.Is(err, fault.SandboxNotRunning) {
			t.Errorf("a use after the end: %v", err)
		}
		if left := f.host.Left(); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
}

// TestUseKeepsASandbox: the idle time counts from the end of the last use, of
// however many at once; a touch is a use, a look is none.
func TestUseKeepsASandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limits)
		began := time.Now()
		sb := createdIdle(t, f, time.Minute)
		first, err := f.Use(t.Context(), sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		second, err := f.Use(t.Context(), sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		first.Release()
		first.Release() // counts once
		time.Sleep(5 * time.Minute)
		second.Release()
		time.Sleep(50 * time.Second)
		if _, err := f.Touch(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Second)
		if _, err := f.List(t.Context(), sandbox.Query{Limit: 1}); err != nil {
			t.Fatal(err)
		}
		gone, at := ended(t, f, sb.ID)
		want := 10*time.Minute + 50*time.Second + time.Minute
		if took := at.Sub(began).Round(time.Second); gone.Reason != sandbox.ReasonIdle || took != want {
			t.Errorf("%s after %s, want %s", gone.Reason, took, want)
		}
	})
}

func TestNoIdleTimeIsNever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limits)
		sb := createdIdle(t, f, -1)
		if gone, _ := ended(t, f, sb.ID); gone.Reason != sandbox.ReasonTTL {
			t.Errorf("%+v", gone)
		}
	})
}

// TestAUseOrAReclaim: uses that race with the reclaim are either refused or keep
// the sandbox; none is let in and then cut off.
func TestAUseOrAReclaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limits)
		for range 50 {
			sb := createdIdle(t, f, time.Second)
			time.Sleep(time.Second)
			var group sync.WaitGroup
			for range 8 {
				group.Go(func() {
					session, err := f.Use(t.Context(), sb.ID)
					if err != nil {
						if !fault.Is(err, fault.SandboxNotRunning) {
							t.Error(err)
						}
						return
					}
					defer session.Release()
					time.Sleep(3 * time.Second)
					if reason := session.Reason(); reason != "" {
						t.Errorf("cut off: %s", reason)
					}
				})
			}
			group.Wait()
			ended(t, f, sb.ID)
		}
	})
}

func TestExtend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limits)
		began := time.Now()
		sb, err := f.Create(t.Context(), sandbox.Spec{Image: "python", TTL: 10 * time.Minute, Idle: -1})
		if err != nil {
			t.Fatal(err)
		}
		same, err := f.Extend(t.Context(), sb.ID, time.Minute) // earlier than it was
		if err != nil || !same.Expires.Equal(sb.Expires) {
			t.Errorf("%s became %s: %v", sb.Expires, same.Expires, err)
		}
		time.Sleep(9 * time.Minute)
		later, err := f.Extend(t.Context(), sb.ID, 20*time.Minute)
		if err != nil || later.Expires.Sub(began).Round(time.Second) != 29*time.Minute {
			t.Errorf("%s after the beginning: %v", later.Expires.Sub(began), err)
		}
		if stored, err := f.Get(t.Context(), sb.ID); err != nil || !stored.Expires.Equal(later.Expires.Truncate(time.Millisecond)) {
			t.Errorf("stored %s, answered %s: %v", stored.Expires, later.Expires, err)
		}
		for _, ttl := range []time.Duration{0, -time.Second, limits.MaxTTL + time.Second, limits.MaxTTL - 9*time.Minute + time.Second} {
			if _, err := f.Extend(t.Context(), sb.ID, ttl); !fault.Is(err, fault.ParameterInvalid) {
				t.Errorf("extend by %s: %v", ttl, err)
			}
		}
		if _, err := f.Extend(t.Context(), sb.ID, limits.MaxTTL-9*time.Minute); err != nil {
			t.Errorf("to the end of the longest life: %v", err)
		}
		gone, at := ended(t, f, sb.ID)
		if gone.Reason != sandbox.ReasonTTL || at.Sub(began).Round(time.Second) != limits.MaxTTL {
			t.Errorf("%s after %s", gone.Reason, at.Sub(began))
		}
		for _, id := range []string{sb.ID, newID()} {
			_, extend := f.Extend(t.Context(), id, time.Minute)
			_, touch := f.Touch(t.Context(), id)
			want := fault.SandboxNotFound
			if id == sb.ID {
				want = fault.SandboxNotRunning
			}
			if !fault.Is(extend, want) || !fault.Is(touch, want) {
				t.Errorf("%s: %v, %v", id, extend, touch)
			}
		}
	})
}

// TestOnlyWhatRunsIsExtended: one that is still starting is refused at once.
func TestOnlyWhatRunsIsExtended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limits)
		f.host.Hang("agent.hello", true)
		go func() { _, _ = f.Create(t.Context(), spec) }()
		synctest.Wait()
		sb := only(t, f)
		_, extend := f.Extend(t.Context(), sb.ID, time.Minute)
		_, touch := f.Touch(t.Context(), sb.ID)
		if !fault.Is(extend, fault.SandboxNotRunning) || !fault.Is(touch, fault.SandboxNotRunning) {
			t.Errorf("%v, %v", extend, touch)
		}
	})
}
