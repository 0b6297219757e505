package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// chunk is as much as is read, or sent in a frame, at once.
type chunk [64 << 10]byte

// buffers are lent for one read or one frame each, so that an execution that
// is silent holds none.
var buffers = sync.Pool{New: func() any { return new(chunk) }}

// execution is one program, from its start until it is forgotten.
type execution struct {
	id    string
	agent *Agent

	started chan struct{} // closed when what follows is there
	refusal error         // before started: nobody; after: constant
	pid     int           // the same
	pidfd   *os.File      // the same; wait closes it
	group   *group        // the same; nil without a cgroup tree
	input   *input        // the same; nil: stdin is empty
	screen  *os.File      // the same; the agent's end of its terminal, or nil
	held    *os.File      // the same; the program's end of it, for as long as the program runs
	ended   chan struct{} // closed when exit is there

	mu      sync.Mutex
	changed chan struct{} // guarded by mu: closed and replaced at each change
	streams [2]tail       // guarded by mu: stdout, stderr
	open    int           // guarded by mu: streams that still grow
	status  *guestwire.Exit
	reaped  bool // guarded by mu: the pid may belong to somebody else
	gone    bool // guarded by mu: forgotten
	told    bool // guarded by mu: the host was sent the exit
}

// start starts execution id, or waits for the one that another request starts.
func (a *Agent) start(id string, request guestwire.Start) (*execution, error) {
	conf, err := a.configuration()
	if err != nil {
		return nil, err
	}
	e, mine, err := a.claim(id)
	if err != nil {
		return nil, err
	}
	if mine {
		e.refusal = e.run(conf, request)
		if e.refusal != nil {
			a.disown(e)
		}
		close(e.started)
	}
	<-e.started
	return e, e.refusal
}

// claim finds the execution or makes it; mine says that the caller starts it.
func (a *Agent) claim(id string) (e *execution, mine bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.executions[id]; e != nil {
		return e, false, nil
	}
	if len(a.executions) >= maxExecutions {
		a.letGoLocked()
	}
	if a.closed || len(a.executions) >= maxExecutions {
		return nil, false, refuse(guestwire.StartFailed, fmt.Sprintf("the agent keeps %d executions already", len(a.executions)))
	}
	e = &execution{
		id: id, agent: a,
		started: make(chan struct{}), ended: make(chan struct{}), changed: make(chan struct{}),
		streams: [2]tail{{budget: &a.budget}, {budget: &a.budget}},
	}
	a.executions[id] = e
	return e, true, nil
}

// letGoLocked gives up the oldest execution whose end was told: a daemon that
// died after it had that never says that it may be forgotten. Ids ascend with
// time.
func (a *Agent) letGoLocked() {
	var oldest *execution
	for id, e := range a.executions {
		e.mu.Lock()
		told := e.told
		e.mu.Unlock()
		if told && (oldest == nil || id < oldest.id) {
			oldest = e
		}
	}
	if oldest != nil {
		oldest.release()
		delete(a.executions, oldest.id)
	}
}

func (a *Agent) disown(e *execution) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.executions[e.id] == e {
		delete(a.executions, e.id)
	}
}

// find returns a started execution.
func (a *Agent) find(id string) (*execution, error) {
	a.mu.Lock()
	e := a.executions[id]
	a.mu.Unlock()
	if e == nil {
		return nil, refuse(guestwire.NoExecution, id)
	}
	<-e.started
	if e.refusal != nil {
		return nil, refuse(guestwire.NoExecution, id)
	}
	return e, nil
}

// run starts the program and the goroutines that follow it; the agent waits
// for them when it is closed.
func (e *execution) run(conf guestwire.Configure, request guestwire.Start) error {
	p, err := e.agent.prepare(conf, request)
	if err != nil {
		return err
	}
	w, err := wire(request, p.who)
	if err != nil {
		return refuse(guestwire.StartFailed, err.Error())
	}
	defer w.closeProgram()
	if e.group, err = e.agent.tree.make(); err != nil {
		w.closeOwn()
		return refuse(guestwire.StartFailed, err.Error())
	}
	if err := e.spawn(p, w); err != nil {
		w.closeOwn()
		e.group.retire()
		return err
	}
	e.input, e.screen, e.held, e.open = w.input, w.screen, w.held, len(w.outputs)
	e.agent.follow(w.outputs)
	for i, output := range w.outputs {
		e.agent.work.Go(func() { e.read(i, output) })
	}
	e.agent.work.Go(func() { e.wait(w.outputs) })
	return nil
}

// wait reaps the program, stops the readers, and tells the end.
func (e *execution) wait(outputs []*os.File) {
	exit := e.reap()
	exit.OOMKilled = e.group.oomKills() > 0
	e.input.end()
	for _, output := range outputs {
		_ = output.SetReadDeadline(time.Unix(1, 0))
	}
	e.mu.Lock()
	for e.open > 0 {
		changed := e.changed
		e.mu.Unlock()
		<-changed
		e.mu.Lock()
	}
	exit.StdoutBytes, exit.StderrBytes = e.streams[0].end, e.streams[1].end
	e.status = &exit
	e.wakeLocked()
	e.mu.Unlock()
	close(e.ended)
	runtime.Gosched() // whoever waits for the end tells it first: what follows takes the kernel a while
	e.group.retire()
}

// reap waits for the program without taking a thread, and collects it under
// the lock: while signal holds the lock the pid is still the program's.
func (e *execution) reap() guestwire.Exit {
	var exit guestwire.Exit
	collect := func(options int) bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		var status unix.WaitStatus
		pid, err := unix.Wait4(e.pid, &status, options, nil)
		if err == nil && pid == 0 || errors.Is(err, unix.EINTR) {
			return false
		}
		exit, e.reaped = exitOf(pid == e.pid, status), true
		return true
	}
	done := false
	if raw, err := e.pidfd.SyscallConn(); err == nil {
		_ = raw.Read(func(uintptr) bool {
			done = collect(unix.WNOHANG)
			return done
		})
	}
	_ = e.pidfd.Close()
	for !done { // at once, unless the poller could not wait
		_ = unix.Waitid(unix.P_PID, e.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		done = collect(unix.WNOHANG)
	}
	return exit
}

// exitOf says how the program ended. That the kernel does not tell (somebody
// else reaped it) cannot happen while the worker waits for its own children;
// should it, SIGKILL is the answer that invents no code.
func exitOf(known bool, status unix.WaitStatus) guestwire.Exit {
	switch {
	case known && status.Exited():
		code := status.ExitStatus()
		return guestwire.Exit{ExitCode: &code}
	case known && status.Signaled():
		return guestwire.Exit{Signal: guestwire.SignalName(int(status.Signal()))}
	default:
		return guestwire.Exit{Signal: "SIGKILL"}
	}
}

func (e *execution) wakeLocked() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// forget frees what is kept. A program that still runs is killed and waited
// for; processes that a program left behind when it ended go on living.
func (e *execution) forget(ctx context.Context) error {
	select {
	case <-e.ended:
	default:
		if err := e.signal("SIGKILL"); err != nil {
			return err
		}
		select {
		case <-e.ended:
		case <-ctx.Done():
			return refuse(guestwire.Failed, "the program was killed and has not ended yet")
		}
		e.group.removeSoon(ctx)
	}
	e.release()
	e.agent.disown(e)
	return nil
}

// release frees the output, for good.
func (e *execution) release() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gone = true
	for i := range e.streams {
		e.streams[i].release()
	}
	e.wakeLocked()
}
