package restart

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/microvmd/microvm/e2e/harness"
	microvm "github.com/microvmd/microvm/sdk/go"
)

// lines writes numbered lines until it is told to stop, then the longest pause
// between two of them.
const lines = `
import os, time
i, longest, last = 0, 0.0, time.monotonic()
while not os.path.exists("/workspace/stop"):
    print(i, flush=True)
    i += 1
    now = time.monotonic()
    longest, last = max(longest, now - last), now
    time.sleep(0.02)
print("longest", longest)
`

// kills is how often the daemon is killed under one stream, and absence how long
// the longest time without one is.
const (
	kills   = 20
	absence = 12 * time.Second
)

// TestAStreamSurvivesKills: the daemon is killed at random points while a program
// prints and a client reads. The microVM goes on under its next daemon, the
// client connects again, and sees every line once; the program does not notice.
func TestAStreamSurvivesKills(t *testing.T) {
	d := harness.Start(t, "stream")
	check := d.Census(t)
	sb := d.Create(t, microvm.SandboxCreate{IdleSeconds: harness.Ptr(-1), TTLSeconds: harness.Ptr(3600)})
	e, err := d.Client.Executions.Create(t.Context(), sb.ID, microvm.ExecutionCreate{Cmd: "python3", Args: []string{"-c", lines}, TimeoutSeconds: harness.Ptr(3600)})
	if err != nil {
		t.Fatal(err)
	}
	vmm := harness.VMM(t, d.Instance, sb.ID)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	read := make(chan readResult, 1)
	seen := make(chan int, 1) // lines so far
	go func() { read <- readLines(ctx, microvm.New(microvm.WithSocket(d.Socket)), sb.ID, e.ID, seen) }()

	next := func() int {
		t.Helper()
		select {
		case n := <-seen:
			return n
		case early := <-read:
			t.Fatalf("the stream ended: %v after %d bytes", early.err, len(early.text))
			return 0
		}
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // when to kill
	for i := range kills {
		before := next()
		for now := before; now < before+5; now = next() { // the reader is connected, and the program goes on
		}
		time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond) // the random point
		d.Kill(t)
		if i == kills/2 {
			time.Sleep(absence)
		}
		d.Run(t)
		if now := harness.VMM(t, d.Instance, sb.ID); now != vmm {
			t.Fatalf("kill %d: its VMM is process %s and was %s", i, now, vmm)
		}
	}
	if _, err := d.Client.Files.Write(t.Context(), sb.ID, "stop", nil); err != nil {
		t.Fatal(err)
	}
	var result readResult
	for done := false; !done; {
		select {
		case <-seen:
		case result = <-read:
			done = true
		}
	}
	if result.err != nil {
		t.Fatal(result.err)
	}
	got := strings.Split(strings.TrimSuffix(result.text, "\n"), "\n")
	for i, line := range got[:len(got)-1] {
		if line != strconv.Itoa(i) {
			t.Fatalf("line %d is %q", i, line)
		}
	}
	longest, err := strconv.ParseFloat(strings.TrimPrefix(got[len(got)-1], "longest "), 64)
	if err != nil {
		t.Fatalf("the last line is %q", got[len(got)-1])
	}
	t.Logf("%d lines over %d kills, longest pause of the program %.2f s", len(got)-1, kills, longest)
	if longest > absence.Seconds()/2 {
		t.Errorf("the program stalled for %.2f s while no daemon was there for %s", longest, absence)
	}
	if _, err := d.Client.Sandboxes.Delete(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	check()
}

type readResult struct {
	text string
	err  error
}

// readLines reads a stream to its end and says how many lines it has.
func readLines(ctx context.Context, client *microvm.Client, sandbox, id string, seen chan<- int) readResult {
	var text strings.Builder
	count := 0
	for event, err := range client.Executions.Stream(ctx, sandbox, id, microvm.Position{}) {
		if err != nil {
			return readResult{text.String(), err}
		}
		switch event.Type {
		case microvm.EventStdout:
			text.Write(event.Data)
			count += strings.Count(string(event.Data), "\n")
		case microvm.EventTruncated:
			return readResult{text.String(), fmt.Errorf("output is lost: %+v", event)}
		case microvm.EventExit:
			return readResult{text.String(), nil}
		}
		select {
		case seen <- count:
		case <-ctx.Done():
			return readResult{text.String(), ctx.Err()}
		default:
		}
	}
	return readResult{text.String(), fmt.Errorf("the stream ended without an exit after %d lines", count)}
}
