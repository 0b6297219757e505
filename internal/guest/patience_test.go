package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
)

// TestAHostThatIsThereLosesNothing: a program that prints faster than its host
// takes it is held up, and every byte comes, although the agent keeps a third of
// them at most.
func TestAHostThatIsThereLosesNothing(t *testing.T) {
	b := newBox(t)
	const size = 3 << 20
	if _, err := b.begin(t, "a", guestwire.Start{Cmd: "head", Args: []string{"-c", "3145728", "/dev/zero"}}); err != nil {
		t.Fatal(err)
	}
	var got int64
	for {
		exit, err := b.Pull(t.Context(), "a", guestwire.Pull{Stdout: got, WaitMS: 1000}, guestwire.Sink{Output: func(f guestwire.Frame) error {
			if f.Offset != got {
				t.Fatalf("%d bytes are lost at %d", f.Offset-got, got)
			}
			got += int64(len(f.Payload))
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		if exit != nil {
			break
		}
		time.Sleep(10 * time.Millisecond) // a host that takes its time
	}
	if got != size {
		t.Fatalf("%d bytes of %d", got, size)
	}
}

// TestAHostThatIsAwayStallsNobodyForLong: without one that takes anything a
// program is held up once, for patience, and then loses its oldest output.
func TestAHostThatIsAwayStallsNobodyForLong(t *testing.T) {
	b := newBox(t)
	done := filepath.Join(t.TempDir(), "done")
	began := time.Now()
	if _, err := b.begin(t, "a", guestwire.Start{Cmd: "sh", Args: []string{"-c", "head -c 20000000 /dev/zero; printf end; : >" + done}}); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(done); err == nil {
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatal("the program is held up for ever")
		}
		time.Sleep(time.Millisecond) // between two looks
	}
	// Twenty times what is kept: held up for each, it would still be on its way.
	t.Logf("the program ended after %s", time.Since(began))
	o := b.finish(t, "a")
	if o.exit.StdoutBytes != 20000003 {
		t.Fatalf("%+v", o.exit)
	}
}

// TestEndsThatNobodyForgets do not fill the agent: when it keeps as many as it
// may, the oldest end that the host was told makes room; one that runs, or whose
// end was not told, stays.
func TestEndsThatNobodyForgets(t *testing.T) {
	b := newBox(t)
	if _, err := b.begin(t, "0-runs", guestwire.Start{Cmd: "sleep", Args: []string{"600"}}); err != nil {
		t.Fatal(err)
	}
	for i := range maxExecutions + 20 {
		if o := b.run(t, fmt.Sprintf("1-%04d", i), guestwire.Start{Cmd: "true"}); o.exit.ExitCode == nil {
			t.Fatalf("%d: %+v", i, o.exit)
		}
	}
	if _, err := b.Pull(t.Context(), "1-0000", guestwire.Pull{}, ignored()); !guestwire.Refused(err, guestwire.NoExecution) {
		t.Errorf("the oldest: %v", err)
	}
	for _, id := range []string{"0-runs", fmt.Sprintf("1-%04d", maxExecutions)} {
		if _, err := b.Pull(t.Context(), id, guestwire.Pull{}, ignored()); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}

func ignored() guestwire.Sink {
	return guestwire.Sink{Output: func(guestwire.Frame) error { return nil }}
}
