package soak_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/microvmd/microvm/e2e/soak"
	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/testkit"
)

// guests makes the agents of one host: in this process, without a program, a
// file or a goroutine of their own, so that twenty thousand operations take
// seconds. What a program has written is a matter of the time it had.
//
// As the real agent they start an id once, keep what was not acknowledged and
// nothing else, tell an exit after all output, and outlive the daemon.
type guests struct {
	mu    sync.Mutex
	slots map[int]*agent // guarded by mu; who runs in each
	wrong []string       // guarded by mu
	made  int            // guarded by mu
}

func newGuests() *guests { return &guests{slots: map[int]*agent{}} }

// start is a testkit.AgentFactory.
func (g *guests) start(plan sandbox.Plan) (http.RoundTripper, func(), error) {
	g.mu.Lock()
	g.made++
	a := &agent{host: plan.Host, boot: fmt.Sprintf("boot-%d", g.made), programs: map[string]*program{}}
	g.mu.Unlock()
	a.life, a.end = context.WithCancelCause(context.Background())
	mux := http.NewServeMux()
	mux.HandleFunc(guestwire.RouteEcho, func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(r.URL.Query().Get("text"))) })
	mux.HandleFunc(guestwire.RouteConfigure, a.configure)
	mux.HandleFunc(guestwire.RouteStart, a.start)
	mux.HandleFunc(guestwire.RoutePull, a.pull)
	mux.HandleFunc(guestwire.RouteSignal, a.signal)
	mux.HandleFunc(guestwire.RouteForget, a.forget)
	transport, _, err := testkit.HandlerAgent(mux)(plan)
	if err != nil {
		return nil, nil, err
	}
	a.transport = transport
	g.take(a, plan.Slot)
	return a, func() { a.end(errGone) }, nil
}

// take notes who runs in a slot. Two microVMs in one slot would have one uid, and
// could reach each other. The host may be about to end the other one.
func (g *guests) take(a *agent, slot int) {
	g.mu.Lock()
	other := g.slots[slot]
	g.slots[slot] = a
	g.mu.Unlock()
	if other == nil {
		return
	}
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-other.life.Done():
	case <-timer.C:
		g.mu.Lock()
		defer g.mu.Unlock()
		g.wrong = append(g.wrong, fmt.Sprintf("%s and %s run in slot %d", other.host, a.host, slot))
	}
}

// bad is what the guests saw that must not be.
func (g *guests) bad() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.wrong
}

var errGone = errors.New("the microVM is gone")

// agent is one guest's.
type agent struct {
	host      string
	boot      string
	life      context.Context //nolint:containedctx // it is the guest's
	end       context.CancelCauseFunc
	transport http.RoundTripper

	mu         sync.Mutex
	generation int64               // guarded by mu
	programs   map[string]*program // guarded by mu; by execution id
	pids       int                 // guarded by mu
}

// program is guarded by its agent's mu, but for changed.
type program struct {
	soak.Program
	pid     int
	began   time.Time
	killed  time.Time     // zero is never
	changed chan struct{} // closed when it is killed
	text    [2][]byte     // all that it will ever write
	acked   [2]int64
}

// RoundTrip ends with the guest.
func (a *agent) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(a.life, func() { cancel(errGone) })()
	return a.transport.RoundTrip(r.WithContext(ctx))
}

func answer(w http.ResponseWriter, value any) { _ = json.NewEncoder(w).Encode(value) }

func refuse(w http.ResponseWriter, code guestwire.Code) {
	w.WriteHeader(code.Status())
	answer(w, guestwire.Error{Code: code})
}

func (a *agent) configure(w http.ResponseWriter, r *http.Request) {
	var in guestwire.Configure
	if json.NewDecoder(r.Body).Decode(&in) != nil || in.Generation < 1 {
		refuse(w, guestwire.BadRequest)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.generation = max(a.generation, in.Generation)
	answer(w, guestwire.Configured{Generation: a.generation})
}

func (a *agent) start(w http.ResponseWriter, r *http.Request) {
	var in guestwire.Start
	if json.NewDecoder(r.Body).Decode(&in) != nil {
		refuse(w, guestwire.BadRequest)
		return
	}
	id := r.PathValue("id")
	if code := a.begin(id, in); code != "" {
		refuse(w, code)
		return
	}
	// A reply reaches its caller when all of it is written, so this one waits for nothing.
	frames, _, _, code := a.say(id, in.Pull, true)
	if code != "" {
		refuse(w, code)
		return
	}
	_, _ = w.Write(frames)
}

// begin starts a program, once.
func (a *agent) begin(id string, in guestwire.Start) guestwire.Code {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.programs[id]
	if p == nil {
		spec, err := soak.ProgramOf(in.Cmd, in.Args)
		switch {
		case err != nil:
			return guestwire.BadRequest
		case a.generation == 0:
			return guestwire.NotConfigured
		case spec.Missing:
			return guestwire.CommandNotFound
		}
		a.pids++
		p = &program{Program: spec, pid: 100 + a.pids, began: time.Now(), changed: make(chan struct{})}
		for i := range p.text {
			p.text[i] = p.Text(i, strconv.Itoa(p.pid), a.boot)
		}
		a.programs[id] = p
	}
	return ""
}

// written is how much it has written by then, and whether it has ended.
func (p *program) written(now time.Time) (sizes [2]int64, over bool) {
	if !p.killed.IsZero() && p.killed.Before(now) {
		now = p.killed
	}
	lines := p.Lines
	if p.Pace > 0 {
		lines = min(lines, int(now.Sub(p.began)/p.Pace)+1)
	}
	for i, step := range [2]int{1, 3} {
		rest := p.text[i]
		for range (lines + step - 1) / step {
			end := bytes.IndexByte(rest, '\n') + 1
			sizes[i] += int64(end)
			rest = rest[end:]
		}
	}
	return sizes, !p.killed.IsZero() || now.Sub(p.began) >= p.Lasts()
}

func (p *program) exit() guestwire.Exit {
	sizes, _ := p.written(time.Now())
	e := guestwire.Exit{StdoutBytes: sizes[0], StderrBytes: sizes[1]}
	if p.killed.IsZero() {
		e.ExitCode = &p.Code
	} else {
		e.Signal = "SIGKILL"
	}
	return e
}

func (a *agent) pull(w http.ResponseWriter, r *http.Request) {
	var in guestwire.Pull
	if json.NewDecoder(r.Body).Decode(&in) != nil {
		refuse(w, guestwire.BadRequest)
		return
	}
	deadline := time.NewTimer(time.Duration(in.WaitMS) * time.Millisecond)
	defer deadline.Stop()
	for waited := false; ; {
		frames, changed, next, code := a.say(r.PathValue("id"), in, waited)
		if code != "" {
			refuse(w, code)
			return
		}
		if frames != nil || waited {
			_, _ = w.Write(frames)
			return
		}
		line := time.NewTimer(next)
		select {
		case <-line.C:
		case <-changed:
		case <-deadline.C:
			waited = true
		case <-r.Context().Done():
			waited = true
		}
		line.Stop()
	}
}

// say is the answer to a pull, if there is one yet; or until when there is none.
func (a *agent) say(id string, in guestwire.Pull, anyway bool) (frames []byte, changed chan struct{}, next time.Duration, code guestwire.Code) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.programs[id]
	if p == nil {
		return nil, nil, 0, guestwire.NoExecution
	}
	now := time.Now()
	sizes, over := p.written(now)
	var out bytes.Buffer
	payload, _ := json.Marshal(guestwire.Started{PID: p.pid})
	_ = guestwire.WriteFrame(&out, guestwire.Frame{Type: guestwire.StartedFrame, Payload: payload})
	begun := out.Len()
	left := int64(guestwire.MaxPullBytes)
	all := true
	for i, cursor := range [2]int64{in.Stdout, in.Stderr} {
		if cursor < 0 || cursor > sizes[i] {
			return nil, nil, 0, guestwire.BadRequest
		}
		p.acked[i] = max(p.acked[i], cursor)
		from := max(cursor, p.acked[i], sizes[i]-guestwire.KeepBytes)
		for from < sizes[i] && left > 0 {
			n := min(sizes[i]-from, guestwire.MaxFramePayload, left)
			_ = guestwire.WriteFrame(&out, guestwire.Frame{Type: guestwire.StdoutFrame + guestwire.FrameType(i), Offset: from, Payload: p.text[i][from : from+n]})
			from, left = from+n, left-n
		}
		all = all && from == sizes[i]
	}
	if over && all {
		payload, _ := json.Marshal(p.exit())
		_ = guestwire.WriteFrame(&out, guestwire.Frame{Type: guestwire.ExitFrame, Payload: payload})
	}
	if out.Len() == begun && !anyway {
		return nil, p.changed, p.Pace - now.Sub(p.began)%max(p.Pace, 1), ""
	}
	return out.Bytes(), nil, 0, ""
}

func (a *agent) signal(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.programs[r.PathValue("id")]
	if p == nil {
		refuse(w, guestwire.NoExecution)
		return
	}
	if _, over := p.written(time.Now()); !over { // the host sends nothing but SIGKILL
		p.killed = time.Now()
		close(p.changed)
	}
	w.WriteHeader(http.StatusNoContent)
}

func (a *agent) forget(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.programs, r.PathValue("id"))
	w.WriteHeader(http.StatusNoContent)
}
