package files

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/microvmd/microvm/e2e/harness"
	microvm "github.com/microvmd/microvm/sdk/go"
)

//go:embed hostile.py
var hostileProgram []byte

// growth is what the daemon may take more while three agents at once do their worst.
const growth = 32 << 20

// memory reads one line of a process's status, in bytes.
func memory(t *testing.T, pid int, name string) int64 {
	t.Helper()
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "\n"+name+":")
	kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// enoughBytes is how much of an endless reply its caller takes before it leaves.
const enoughBytes = 24 << 20

// lie is one way to answer file calls wrongly, and what calls get of it.
type lie struct {
	way   string
	calls func(ctx context.Context, b box) map[string]error
	// taken says that the reply is as good as any for all that the daemon can know:
	// it is passed on, and its caller leaves.
	taken bool
	// cut says that the reply breaks off.
	cut bool
}

func (b box) listed(ctx context.Context) error {
	_, err := b.list(ctx, "/workspace", 2, 1000)
	return err
}

var lies = []lie{
	{way: "list for ever"},
	{way: "line for ever"},
	{way: "list up"},
	{way: "list elsewhere"},
	{way: "list back"},
	{way: "list deep"},
	{way: "list more than asked"},
	{way: "list on"},
	{way: "list cut", cut: true},
	{way: "huge header"},
	{way: "unknown refusal"},
	{way: "wrong entry 0", calls: stats},
	{way: "wrong entry 1", calls: stats},
	{way: "wrong entry 9", calls: stats},
	{way: "wrong entry 15", calls: stats},
	{way: "body too short", cut: true, calls: func(ctx context.Context, b box) map[string]error {
		_, err := b.read(ctx, "/x")
		return map[string]error{"read": err}
	}},
	{way: "body that is another's", calls: reads},
	{way: "body without a file", calls: reads},
	{way: "huge body", taken: true, calls: func(ctx context.Context, b box) map[string]error {
		reply, err := b.raw(ctx, "files", at("/x"))
		if err == nil {
			_, err = io.Copy(&little{enoughBytes}, reply.Body)
			_ = reply.Body.Close()
		}
		return map[string]error{"read": err}
	}},
	{way: "archive for ever", taken: true, calls: func(ctx context.Context, b box) map[string]error {
		return map[string]error{"pack": b.pack(ctx, "/x", &little{enoughBytes}, plain)}
	}},
	{way: "changes for ever", taken: true, calls: func(ctx context.Context, b box) map[string]error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		events, err := b.watch(ctx, "/workspace", true)
		for range 20_000 {
			if e := <-events; e.text != "created /workspace/x" && err == nil {
				err = fmt.Errorf("%+v", e)
			}
		}
		if err == nil {
			err = errEnough
		}
		return map[string]error{"watch": err}
	}},
	{way: "changes elsewhere", calls: func(ctx context.Context, b box) map[string]error {
		events, err := b.watch(ctx, "/workspace", true)
		if err == nil {
			err = (<-events).err
		}
		return map[string]error{"watch": err}
	}},
	{way: "impossible sums", calls: lateCalls},
	{way: "spaces for ever", calls: lateCalls},
	{way: "signs for ever", taken: true, calls: func(ctx context.Context, b box) map[string]error { // as long as a removal may be
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err := b.remove(ctx, "/x", true)
		if errors.Is(err, context.DeadlineExceeded) {
			err = errEnough
		}
		return map[string]error{"remove": err}
	}},
}

func stats(ctx context.Context, b box) map[string]error {
	_, err := b.stat(ctx, "/x")
	return map[string]error{"stat": err}
}

func reads(ctx context.Context, b box) map[string]error {
	_, err := b.read(ctx, "/x")
	_, _, again := b.get(ctx, "/x", "Range", "bytes=0-9")
	return map[string]error{"read": err, "range": again}
}

func lateCalls(ctx context.Context, b box) map[string]error {
	all := make(map[string]error)
	_, all["remove"] = b.remove(ctx, "/x", true)
	_, all["unpack"] = b.unpack(ctx, "/x", bytes.NewReader(make([]byte, 1024)), plain, user)
	_, all["batch"] = b.batch(ctx, microvm.FileWrite{Path: "/x", Content: []byte("x")})
	return all
}

// TestAHostileAgentTellsNoLies: guest root answers file calls in the agent's place.
// What cannot be true reaches no caller, and nothing of it stays in the daemon.
func TestAHostileAgentTellsNoLies(t *testing.T) {
	d := harness.Start(t, "liars", "--slots", "5", "--templates", "1", "--scratch-mib", "128")
	other := newBox(t, d, 1)
	d.AwaitTemplate(t)
	if _, err := other.put(t.Context(), "before", strings.NewReader("well")); err != nil {
		t.Fatal(err)
	}
	settled := memory(t, d.PID(), "VmRSS")
	if err := os.WriteFile(filepath.Join("/proc", strconv.Itoa(d.PID()), "clear_refs"), []byte("5"), 0); err != nil { // VmHWM begins anew: proc(5)
		t.Fatal(err)
	}
	turns := make(chan struct{}, 3)
	var all sync.WaitGroup
	for _, l := range lies {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			t.Run(l.way, func(t *testing.T) { l.told(t, d) })
		})
	}
	all.Wait()
	if peak := memory(t, d.PID(), "VmHWM"); peak > settled+growth {
		t.Errorf("the daemon grew from %d to %d KiB", settled>>10, peak>>10)
	} else {
		t.Logf("the daemon: %d KiB before, at most %d KiB", settled>>10, peak>>10)
	}
	other.holds(t, "before", []byte("well"))
}

func (l lie) told(t *testing.T, d *harness.Daemon) {
	b := newBox(t, d, 1)
	if _, err := b.put(t.Context(), "hostile.py", bytes.NewReader(hostileProgram)); err != nil {
		t.Fatal(err)
	}
	spec := microvm.ExecutionCreate{Cmd: "python3", Args: []string{"hostile.py", l.way}, User: harness.Ptr("root"), TimeoutSeconds: harness.Ptr(3600)}
	exe, err := d.Client.Executions.Create(t.Context(), b.id, spec)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), callBound)
	defer cancel()
	for taken := false; !taken; { // it takes a moment until it has the agent's place
		try, stop := context.WithTimeout(ctx, 5*time.Second) // one that the agent had when it was stopped hangs
		_, err := b.stat(try, "/taken")
		stop()
		time.Sleep(200 * time.Millisecond) // between two tries: it starts on the guest's only CPU
		if taken = err == nil; !taken && !microvm.HasCode(err, microvm.ErrorCodeFileNotFound) && try.Err() == nil || ctx.Err() != nil {
			now, _ := d.Client.Executions.Retrieve(ctx, b.id, exe.ID)
			t.Fatalf("it does not take the agent's place: %v; %+v", err, now)
		}
	}
	calls := l.calls
	if calls == nil {
		calls = func(ctx context.Context, b box) map[string]error { return map[string]error{"list": b.listed(ctx)} }
	}
	for call, err := range calls(ctx, b) {
		var lost *microvm.ConnectionError // how a reply ends that cannot be read to its end
		fine := microvm.HasCode(err, microvm.ErrorCodeGuestUnreachable) || microvm.HasCode(err, microvm.ErrorCodeSandboxNotRunning) || l.cut && errors.As(err, &lost)
		if l.taken {
			fine = errors.Is(err, errEnough)
		}
		if !fine || ctx.Err() != nil {
			t.Errorf("%s: %v", call, err)
		}
	}
	gone, err := d.Client.Sandboxes.Delete(t.Context(), b.id)
	if err != nil {
		t.Fatal(err)
	}
	// Who breaks the protocol ends; what only breaks off, or cannot be told from the
	// truth, is no breach.
	want := microvm.SandboxReason("agent_died")
	if l.taken || l.cut {
		want = "deleted"
	}
	if gone.Reason == nil || *gone.Reason != want {
		t.Errorf("the sandbox ended as %+v, want %s", gone, want)
	}
}
