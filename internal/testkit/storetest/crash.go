package storetest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/sandbox"
)

// crashEnv tells the child of a Crash test which place to write to.
const crashEnv = "MICROVM_STORETEST_CRASH"

// acknowledged is one line of the child: a write that returned nil.
type acknowledged struct {
	Sandbox   *sandbox.Sandbox     `json:",omitempty"`
	Execution *execution.Execution `json:",omitempty"`
}

// Crash proves that a write that returned nil survives kill -9: the test runs
// itself as a child that writes without end and says what was acknowledged,
// kills it, opens the store again and looks. reopen opens the store of a place,
// a folder that the test owns, with what is in it; it is closed when that test
// ends. The child does nothing else
// than this test, so Crash must be called from a test without subtests around it.
func Crash(t *testing.T, reopen func(t *testing.T, place string) Store) {
	if place := os.Getenv(crashEnv); place != "" {
		writeUntilKilled(t, reopen(t, place))
		return
	}
	place := t.TempDir()
	seen := map[string]acknowledged{} // by id, the last one counts
	// Killed after so many acknowledgements: the first writes after opening, and
	// far enough for the log to be copied into the file between.
	for _, after := range []int{1, 2, 7, 40, 150, 400} {
		acks := killedChild(t, place, after)
		t.Run(fmt.Sprint("after", after), func(t *testing.T) { // the store is closed with it
			for _, ack := range acks {
				if ack.Sandbox != nil {
					seen[ack.Sandbox.ID] = ack
				} else {
					seen[ack.Execution.ID] = ack
				}
			}
			s := reopen(t, place)
			for _, ack := range seen {
				expectAcknowledged(t, s, ack)
			}
			insert(t, s, Sandbox()) // it takes writes again
		})
	}
	t.Logf("%d rows acknowledged, all there", len(seen))
}

// expectAcknowledged looks for a write that returned nil. The one after the last
// of them may be there too.
func expectAcknowledged(t *testing.T, s Store, ack acknowledged) {
	t.Helper()
	if want := ack.Sandbox; want != nil {
		got, err := s.Sandbox(t.Context(), want.ID)
		must(t, err)
		if got.State != want.State && got.State != sandbox.Stopped {
			t.Fatalf("acknowledged %+v, found %+v", *want, got)
		}
		got.State, got.StopReason, got.Reason, got.Stopped = want.State, want.StopReason, want.Reason, want.Stopped
		equal(t, got, *want)
		return
	}
	want := ack.Execution
	got, err := s.Execution(t.Context(), want.Sandbox, want.ID)
	must(t, err)
	if want.Status != execution.Running {
		equal(t, got, *want)
	}
}

// writeUntilKilled is the child.
func writeUntilKilled(t *testing.T, s Store) {
	say := json.NewEncoder(os.Stdout) // each line is one write(2)
	for i := 0; ; i++ {
		sb := Sandbox()
		sb.Name, sb.Tags = fmt.Sprint("w", sb.ID), map[string]string{"i": fmt.Sprint(i)}
		must(t, s.InsertSandbox(t.Context(), sb))
		must(t, say.Encode(acknowledged{Sandbox: &sb}))
		e := Execution(sb.ID)
		must(t, s.InsertExecution(t.Context(), e))
		must(t, say.Encode(acknowledged{Execution: &e}))
		e = exit(e, i)
		must(t, s.FinishExecution(t.Context(), e))
		must(t, say.Encode(acknowledged{Execution: &e}))
		if sb = stop(sb, now()); i%2 == 0 {
			must(t, s.UpdateSandbox(t.Context(), sb))
			must(t, say.Encode(acknowledged{Sandbox: &sb}))
		}
	}
}

// killedChild starts the child, kills it after so many acknowledgements, and
// returns all that it gave.
func killedChild(t *testing.T, place string, after int) (acks []acknowledged) {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	name := "^" + strings.ReplaceAll(regexp.QuoteMeta(t.Name()), "/", "$/^") + "$"
	child := exec.CommandContext(t.Context(), exe, "-test.run="+name, "-test.count=1")
	child.Env = append(os.Environ(), crashEnv+"="+place)
	var complaint bytes.Buffer
	child.Stderr = &complaint
	out, err := child.StdoutPipe()
	must(t, err)
	must(t, child.Start())
	killed := false
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var ack acknowledged
		if err := json.Unmarshal(lines.Bytes(), &ack); err != nil {
			complaint.Write(lines.Bytes())
			break
		}
		acks = append(acks, ack)
		if len(acks) == after {
			must(t, child.Process.Kill())
			killed = true
		}
	}
	err = child.Wait()
	if !killed {
		t.Fatalf("child ended by itself after %d acknowledgements: %v: %s", len(acks), err, complaint.String())
	}
	return acks
}
