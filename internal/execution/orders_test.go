package execution_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/ident"
	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/testkit"
)

// actor is an agent whose programs end when the test says so, or when they are
// killed, unless it stalls.
type actor struct {
	mu       sync.Mutex
	programs map[string]*program // by execution
	stall    bool                // a kill has no effect
}

// program is one that has ended when over is closed.
type program struct {
	over chan struct{}
	once sync.Once
	exit guestwire.Exit
}

func (a *actor) program(id string) *program {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.programs[id] == nil {
		a.programs[id] = &program{over: make(chan struct{})}
	}
	return a.programs[id]
}

// end ends a program; the first end counts.
func (a *actor) end(id string, exit guestwire.Exit) {
	p := a.program(id)
	p.once.Do(func() { p.exit = exit; close(p.over) })
}

func (a *actor) agent() testkit.AgentFactory {
	mux := configured()
	mux.HandleFunc(guestwire.RouteStart, func(w http.ResponseWriter, _ *http.Request) { (&framed{ResponseWriter: w}).begin() })
	mux.HandleFunc(guestwire.RoutePull, func(w http.ResponseWriter, r *http.Request) {
		framed := &framed{ResponseWriter: w}
		defer framed.begin()
		var pull guestwire.Pull
		_ = json.NewDecoder(r.Body).Decode(&pull)
		program := a.program(r.PathValue("id"))
		select {
		case <-program.over:
			payload, _ := json.Marshal(program.exit)
			_ = guestwire.WriteFrame(framed, guestwire.Frame{Type: guestwire.ExitFrame, Payload: payload})
		case <-time.After(time.Duration(pull.WaitMS) * time.Millisecond):
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc(guestwire.RouteSignal, func(w http.ResponseWriter, r *http.Request) {
		if !a.stall {
			a.end(r.PathValue("id"), guestwire.Exit{Signal: "SIGKILL"})
		}
		w.WriteHeader(http.StatusNoContent)
	})
	return testkit.HandlerAgent(mux)
}

// ends are all causes that can end an execution, with what must be told when it
// is the first.
var ends = []struct {
	name   string
	status execution.Status
	reason execution.Reason
}{
	{"exit", execution.Exited, ""},
	{"timeout", execution.TimedOut, execution.Timeout},
	{"cancel", execution.Canceled, execution.ByCaller},
	{"ttl", execution.Vanished, execution.TTL},
	{"delete", execution.Vanished, execution.Deleted},
	{"vm dies", execution.Vanished, execution.VMDied},
}

// apart is the time between two causes: more than a kill takes to be given up.
const apart = 7 * time.Second

// TestTheFirstCauseIsTold drives all 720 orders of the six causes, with an agent
// that obeys and one that does not: what is told is the first one, in the store
// too, and what comes later changes nothing.
func TestTheFirstCauseIsTold(t *testing.T) {
	for _, stall := range []bool{false, true} {
		t.Run(fmt.Sprintf("stalls=%t", stall), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				agent := &actor{programs: map[string]*program{}, stall: stall}
				f := newFixture(t, agent.agent())
				orders := 0
				permute([]int{0, 1, 2, 3, 4, 5}, func(order []int) {
					orders++
					first := ends[order[0]]
					e := f.drive(t, agent, order, apart)
					if e.Status != first.status || e.Reason != first.reason {
						t.Fatalf("%s: told %s %q", names(order), e.Status, e.Reason)
					}
					if known := e.ExitCode != nil || e.Signal != ""; known != (first.name == "exit" || !stall && first.status != execution.Vanished) {
						t.Fatalf("%s: code %v, signal %q", names(order), e.ExitCode, e.Signal)
					}
				})
				t.Logf("%d orders", orders)
			})
		})
	}
}

// TestCausesAtOnce lets all six come at the same moment: what is told is one of
// them, whole, and stays.
func TestCausesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := &actor{programs: map[string]*program{}}
		f := newFixture(t, agent.agent())
		told := map[execution.Status]int{}
		for range 300 {
			e := f.drive(t, agent, []int{0, 1, 2, 3, 4, 5}, 0)
			if !slices.ContainsFunc(ends[:], func(end struct {
				name   string
				status execution.Status
				reason execution.Reason
			},
			) bool {
				return e.Status == end.status && e.Reason == end.reason
			}) {
				t.Fatalf("told %s %q", e.Status, e.Reason)
			}
			told[e.Status]++
		}
		t.Logf("%v", told)
	})
}

// drive starts an execution in a sandbox of its own, lets the causes come in an
// order, and returns it as it is told at the end of all.
func (f *fixture) drive(t *testing.T, agent *actor, order []int, step time.Duration) execution.Execution {
	t.Helper()
	const before = 10 * time.Second
	at := func(name string) time.Duration {
		return before + time.Duration(slices.IndexFunc(order, func(i int) bool { return ends[i].name == name }))*step
	}
	sb, err := f.sandboxes.Create(t.Context(), sandbox.Spec{Image: "python", TTL: at("ttl")})
	if err != nil {
		t.Fatal(err)
	}
	e, err := f.Start(t.Context(), sb.ID, execution.Spec{Cmd: "x", Timeout: at("timeout")})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var all sync.WaitGroup
	for _, act := range []struct {
		name string
		do   func()
	}{
		{"exit", func() { agent.end(e.ID, guestwire.Exit{ExitCode: new(int)}) }},
		{"cancel", func() { _, _ = f.Cancel(t.Context(), sb.ID, e.ID, execution.Cancel{}) }},
		{"delete", func() { _, _ = f.sandboxes.Delete(t.Context(), sb.ID) }},
		{"vm dies", func() { f.host.Die(ident.Host(sb.ID)) }},
	} {
		all.Go(func() {
			time.Sleep(at(act.name) - time.Since(began))
			act.do()
		})
	}
	early, err := f.Wait(t.Context(), sb.ID, e.ID, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	all.Wait()
	time.Sleep(before + time.Duration(len(order))*step)
	late, err := f.Get(t.Context(), sb.ID, e.ID)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := f.store.Execution(t.Context(), sb.ID, e.ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range []execution.Execution{late, stored} {
		if other.Status != early.Status || other.Reason != early.Reason || other.Signal != early.Signal || (other.ExitCode == nil) != (early.ExitCode == nil) {
			t.Fatalf("%s: told %+v, then %+v", names(order), early, other)
		}
	}
	if follower, err := f.Follow(t.Context(), sb.ID, e.ID, execution.Position{}); err != nil {
		t.Fatal(err)
	} else if last := drain(t, follower); last.Execution.Status != early.Status {
		t.Fatalf("%s: told %+v, streamed %+v", names(order), early, last.Execution)
	}
	return early
}

// drain reads a follower to its end and returns the last event.
func drain(t *testing.T, f *execution.Follower) (last execution.Event) {
	t.Helper()
	for {
		event, err := f.Next(t.Context())
		if err == io.EOF { //nolint:errorlint // exactly that is promised
			return last
		}
		if err != nil {
			t.Fatal(err)
		}
		last = event
	}
}

func names(order []int) string {
	var all []string
	for _, i := range order {
		all = append(all, ends[i].name)
	}
	return strings.Join(all, ", ")
}

// permute calls do with every order of what is in list.
func permute(list []int, do func([]int)) {
	var rec func(int)
	rec = func(k int) {
		if k == len(list) {
			do(slices.Clone(list))
			return
		}
		for i := k; i < len(list); i++ {
			list[k], list[i] = list[i], list[k]
			rec(k + 1)
			list[k], list[i] = list[i], list[k]
		}
	}
	rec(0)
}
