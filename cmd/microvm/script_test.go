package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/microvmd/microvm/internal/fault"
	microvm "github.com/microvmd/microvm/sdk/go"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"microvm": main})
}

type nodeKey struct{}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:           filepath.Join("testdata", "script"),
		UpdateScripts: os.Getenv("UPDATE_SCRIPTS") != "",
		Setup: func(env *testscript.Env) error {
			node := newFakeNode()
			env.Defer(node.close)
			env.Values[nodeKey{}] = node
			env.Setenv("NODE", node.server.URL)
			env.Setenv("MICROVM_URL", node.server.URL)
			env.Setenv("MICROVM_API_KEY", fakeKey)
			env.Setenv("TZ", "UTC")
			env.Setenv("XDG_CACHE_HOME", filepath.Join(env.WorkDir, ".cache"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"fails":     scriptFails,
			"code":      scriptCode,
			"await":     scriptAwait,
			"hold":      scriptHold,
			"release":   scriptRelease,
			"interrupt": scriptInterrupt,
			"left":      scriptLeft,
			"idle":      scriptIdle,
			"ended":     scriptEnded,
			"canceled":  scriptCanceled,
			"cancel":    scriptCancel,
			"stopped":   scriptStopped,
			"variables": scriptVariables,
			"brought":   scriptBrought,
		},
	})
}

func node(ts *testscript.TestScript) *fakeNode { return ts.Value(nodeKey{}).(*fakeNode) }

// fails 'POST sandbox' node_at_capacity [param]: the node refuses such requests.
func scriptFails(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: fails 'METHOD noun' code [param]")
	}
	status := map[fault.Kind]int{
		fault.Invalid: 400, fault.NotFound: 404, fault.Conflict: 409, fault.TooLarge: 413, fault.Capacity: 429, fault.GuestDiskFull: 507,
		fault.GuestLost: 502, fault.Internal: 500, fault.Unavailable: 503, fault.Unauthenticated: 401,
	}[(&fault.Error{Code: fault.Code(args[1])}).Kind()]
	e := &microvm.Error{Status: status, Type: microvm.ErrorTypeAPIError, Code: microvm.ErrorCode(args[1]), Message: "refused for a test"}
	if len(args) > 2 {
		e.Param = args[2]
	}
	if status == 429 {
		e.RetryAfter = 3600 * time.Second // longer than any client waits
	}
	n := node(ts)
	n.mu.Lock()
	n.failing[args[0]] = e
	n.mu.Unlock()
}

// code 3 microvm run ..: the program ends with this code.
func scriptCode(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if coder, ok := err.(interface{ ExitCode() int }); ok {
		got = coder.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// await 'GET execution': until the node was asked such a thing, since the last
// await of it.
func scriptAwait(ts *testscript.TestScript, neg bool, args []string) {
	n := node(ts)
	<-n.event(args[0])
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.events, args[0])
}

// hold 'GET execution': the node does not answer such requests until release.
func scriptHold(ts *testscript.TestScript, neg bool, args []string) {
	n := node(ts)
	n.mu.Lock()
	delete(n.events, args[0]) // await means the request that is held
	delete(n.gates, args[0])
	n.mu.Unlock()
	n.gate(args[0])
}

func scriptRelease(ts *testscript.TestScript, neg bool, args []string) { close(node(ts).gate(args[0])) }

// interrupt [TERM|HUP]: SIGINT to the program in the background, or another.
func scriptInterrupt(ts *testscript.TestScript, neg bool, args []string) {
	signal := syscall.SIGINT
	if len(args) > 0 {
		signal = map[string]syscall.Signal{"TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP}[args[0]]
	}
	for _, command := range ts.BackgroundCmds() {
		ts.Check(command.Process.Signal(signal))
		node(ts).interrupted = command
	}
}

// ended 130: the program that was interrupted last, and was waited for, had this
// code.
func scriptEnded(ts *testscript.TestScript, neg bool, args []string) {
	if got := strconv.Itoa(node(ts).interrupted.ProcessState.ExitCode()); got != args[0] {
		ts.Fatalf("exit code %s, want %s", got, args[0])
	}
}

// newest is the execution that was started last; it expects the lock.
func (f *fakeNode) newest() *process {
	ids := slices.Sorted(maps.Keys(f.processes))
	return f.processes[ids[len(ids)-1]]
}

// canceled 'SIGINT 10' SIGKILL: so the newest execution was cancelled.
func scriptCanceled(ts *testscript.TestScript, neg bool, args []string) {
	n := node(ts)
	n.mu.Lock()
	defer n.mu.Unlock()
	var got []string
	for _, how := range n.newest().cancels {
		text := "SIGKILL"
		if how.Signal != nil {
			text = string(*how.Signal)
		}
		if how.GraceSeconds != nil {
			text += " " + strconv.Itoa(*how.GraceSeconds)
		}
		got = append(got, text)
	}
	if !slices.Equal(got, args) {
		ts.Fatalf("cancelled by %q, want %q", got, args)
	}
}

// cancel: somebody else cancels the newest execution.
func scriptCancel(ts *testscript.TestScript, neg bool, args []string) {
	n := node(ts)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.newest().endLocked(microvm.ExecutionStatusCanceled, func(e *microvm.Execution) {
		e.Reason, e.Signal = new(microvm.ExecutionReasonCanceled), new("SIGKILL")
	})
}

// stopped other: the sandbox of this name stops; its id is $STOPPED.
func scriptStopped(ts *testscript.TestScript, neg bool, args []string) {
	n := node(ts)
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, sb := range n.sandboxes {
		if sb.Name != nil && *sb.Name == args[0] {
			sb.State = microvm.SandboxStateStopped
			ts.Setenv("STOPPED", id)
		}
	}
}

// variables A=1: the newest sandbox has these and no others.
func scriptVariables(ts *testscript.TestScript, neg bool, args []string) {
	n := node(ts)
	n.mu.Lock()
	defer n.mu.Unlock()
	var got []string
	env := n.env[slices.Max(slices.Collect(maps.Keys(n.sandboxes)))]
	for _, name := range slices.Sorted(maps.Keys(env)) {
		got = append(got, name+"="+env[name])
	}
	if !slices.Equal(got, args) {
		ts.Fatalf("variables %q, want %q", got, args)
	}
}

// left 0: so many sandboxes have not stopped.
func scriptLeft(ts *testscript.TestScript, neg bool, args []string) {
	n := node(ts)
	n.mu.Lock()
	defer n.mu.Unlock()
	var running []string
	for id, sb := range n.sandboxes {
		if sb.State != microvm.SandboxStateStopped {
			running = append(running, id)
		}
	}
	if strconv.Itoa(len(running)) != args[0] {
		ts.Fatalf("left %s, want %s", strings.Join(running, " "), args[0])
	}
}

// idle 300: the newest sandbox was asked for with this idle_seconds.
func scriptIdle(ts *testscript.TestScript, neg bool, args []string) {
	n := node(ts)
	n.mu.Lock()
	defer n.mu.Unlock()
	newest := ""
	for id := range n.sandboxes {
		newest = max(newest, id)
	}
	if got := strconv.Itoa(n.idle[newest]); got != args[0] {
		ts.Fatalf("idle_seconds %s, want %s", got, args[0])
	}
}
