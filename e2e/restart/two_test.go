package restart

import (
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/microvmd/microvm/e2e/harness"
	microvm "github.com/microvmd/microvm/sdk/go"
)

// TestTwoDaemonsLeaveEachOtherAlone: starts, reconciling, kills and drains of
// one are nothing to the other's sandbox.
func TestTwoDaemonsLeaveEachOtherAlone(t *testing.T) {
	left := harness.Start(t, "left", "--drain", "--reconcile-every", "1s", "--uid-base", "1960000000")
	mine := left.Create(t, microvm.SandboxCreate{})
	a := count(t, left.Client, left.Instance, mine.ID)

	right := harness.Start(t, "right", "--drain", "--reconcile-every", "1s", "--uid-base", "1970000000")
	a.goesOnIn(left.Client, left.Instance)
	theirs := right.Create(t, microvm.SandboxCreate{})
	b := count(t, right.Client, right.Instance, theirs.ID)

	reconciled(t, left.Instance)
	reconciled(t, right.Instance)
	a.goesOnIn(left.Client, left.Instance)
	b.goesOnIn(right.Client, right.Instance)

	right.Kill(t)
	reconciled(t, left.Instance)
	right.Run(t)
	a.goesOnIn(left.Client, left.Instance)
	b.goesOnIn(right.Client, right.Instance)

	right.Stop(t)
	a.goesOnIn(left.Client, left.Instance)
	if gone, err := os.Stat(harness.Cgroup(right.Instance, theirs.ID)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the drain left %v %v", gone, err)
	}
	right.Run(t)
	reconciled(t, right.Instance)
	a.goesOnIn(left.Client, left.Instance)
}

// reconciled waits until a daemon has compared the host with what should be
// there: it removes an empty cgroup that nobody owns.
func reconciled(t *testing.T, instance string) {
	t.Helper()
	orphan := harness.Cgroup(instance, "sb_01KBA3ZJ7M8QW2X4Y6V8T0R2P4")
	if err := os.Mkdir(orphan, 0o755); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(wait); ; time.Sleep(50 * time.Millisecond) { // between two looks
		if _, err := os.Stat(orphan); errors.Is(err, fs.ErrNotExist) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not reconcile", instance)
		}
	}
}
