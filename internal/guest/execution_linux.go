package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// buffers are lent for one read or one frame each, so that an execution that
// is silent holds none.
var buffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// execution is one program, from its start until it is forgotten.
type execution struct {
	id    string
	agent *Agent

	started chan struct{} // closed when pid or refusal is there
	refusal error         // before started: nobody; after: constant
	pid     int           // the same
	pidfd   *os.File      // the same; wait closes it
	ended   chan struct{} // closed when exit is there

	mu      sync.Mutex
	changed chan struct{} // guarded by mu: closed and replaced at each change
	streams [2]tail       // guarded by mu: stdout, stderr
	open    int           // guarded by mu: streams that still grow
	status  *guestwire.Exit
	reaped  bool // guarded by mu: the pid may belong to somebody else
	gone    bool // guarded by mu: forgotten
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
	if a.closed || len(a.executions) >= maxExecutions {
		return nil, false, refuse(guestwire.StartFailed, fmt.Sprintf("the agent keeps %d executions already", len(a.executions)))
	}
	e = &execution{
		id: id, agent: a,
		started: make(chan struct{}), ended: make(chan struct{}), changed: make(chan struct{}),
		streams: [2]tail{{budget: &a.budget}, {budget: &a.budget}}, open: 2,
	}
	a.executions[id] = e
	return e, true, nil
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
	group, err := e.agent.tree.make(e.id)
	if err != nil {
		return refuse(guestwire.StartFailed, err.Error())
	}
	before := e.agent.tree.oomKills(e.id)
	pipes, err := e.spawn(p, group)
	if group != nil {
		_ = group.Close()
	}
	if err != nil {
		e.agent.tree.remove(e.id)
		return startRefusal(err)
	}
	e.agent.follow(pipes[:])
	for i := range pipes {
		e.agent.work.Go(func() { e.read(i, pipes[i]) })
	}
	e.agent.work.Go(func() { e.wait(pipes, before) })
	return nil
}

// spawn clones the program into its cgroup and returns the reading ends of its
// stdout and stderr.
func (e *execution) spawn(p program, group *os.File) (pipes [2]*os.File, err error) {
	pidfd := -1
	attr := &syscall.ProcAttr{Dir: p.dir, Env: p.env, Files: []uintptr{e.agent.null.Fd()}}
	attr.Sys = &syscall.SysProcAttr{Setsid: true, Credential: p.who.credential(), PidFD: &pidfd}
	if group != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(group.Fd())
	}
	for i := range pipes {
		reader, writer, pipeErr := os.Pipe()
		if pipeErr != nil {
			closeAll(pipes[:])
			return pipes, pipeErr
		}
		defer func() { _ = writer.Close() }()
		pipes[i] = reader
		attr.Files = append(attr.Files, writer.Fd())
	}
	e.agent.exposed(func() { e.pid, _, err = syscall.StartProcess(p.path, p.argv, attr) })
	if err == nil && pidfd < 0 {
		_ = unix.Kill(-e.pid, unix.SIGKILL)
		_, _ = unix.Wait4(e.pid, nil, 0, nil)
		err = errors.New("the kernel gives no pidfd")
	}
	if err != nil {
		closeAll(pipes[:])
		return pipes, err
	}
	_ = unix.SetNonblock(pidfd, true) // lets the runtime's poller wait on it
	e.pidfd = os.NewFile(uintptr(pidfd), "pidfd")
	return pipes, nil
}

func closeAll(files []*os.File) {
	for _, file := range files {
		_ = file.Close() // a nil file answers with an error
	}
}

// read copies a pipe into the tail until the program ended and what it wrote
// is read. What its children write later is read too, so that they do not die
// of a broken pipe, and thrown away.
func (e *execution) read(stream int, pipe *os.File) {
	defer e.agent.unfollow(pipe)
	raw, err := pipe.SyscallConn()
	for err == nil {
		err = e.readOnce(stream, raw)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		e.drain(stream, raw)
	}
	e.finish()
	_ = pipe.SetReadDeadline(time.Time{})
	_, _ = io.Copy(io.Discard, struct{ io.Reader }{pipe})
}

// readOnce waits for something to read and appends it; io.EOF ends it.
func (e *execution) readOnce(stream int, raw syscall.RawConn) error {
	var failed error
	err := raw.Read(func(fd uintptr) bool {
		buf := buffers.Get().(*[64 << 10]byte) //nolint:forcetypeassert // the pool holds nothing else
		defer buffers.Put(buf)
		n, err := unix.Read(int(fd), buf[:])
		switch {
		case errors.Is(err, unix.EAGAIN):
			return false
		case errors.Is(err, unix.EINTR):
		case err != nil:
			failed = err
		case n == 0:
			failed = io.EOF
		default:
			e.append(stream, buf[:n])
		}
		return true
	})
	return errors.Join(err, failed)
}

// drain reads what lies in the pipe now; what a child that goes on writing
// adds meanwhile is not read.
func (e *execution) drain(stream int, raw syscall.RawConn) {
	buf := buffers.Get().(*[64 << 10]byte) //nolint:forcetypeassert // the pool holds nothing else
	defer buffers.Put(buf)
	_ = raw.Control(func(fd uintptr) {
		left, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		for err == nil && left > 0 {
			n := 0
			n, err = unix.Read(int(fd), buf[:min(left, len(buf))])
			if errors.Is(err, unix.EINTR) {
				err = nil
				continue
			}
			if n <= 0 {
				return
			}
			e.append(stream, buf[:n])
			left -= n
		}
	})
}

// wait reaps the program and then stops the readers.
func (e *execution) wait(pipes [2]*os.File, oomBefore int64) {
	exit := e.reap()
	exit.OOMKilled = e.agent.tree.oomKills(e.id) > oomBefore
	for _, pipe := range pipes {
		_ = pipe.SetReadDeadline(time.Unix(1, 0))
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
	e.agent.tree.retire(e.id)
	close(e.ended)
}

// reap waits for the program, without taking a thread where the poller can
// wait for it, and collects it under the lock: while signal holds the lock the
// pid is still the program's.
func (e *execution) reap() guestwire.Exit {
	if raw, err := e.pidfd.SyscallConn(); err == nil {
		_ = raw.Read(func(fd uintptr) bool {
			var info unix.Siginfo
			err := unix.Waitid(unix.P_PIDFD, int(fd), &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
			return err != nil && !errors.Is(err, unix.EINTR) || info.Signo != 0
		})
	}
	_ = e.pidfd.Close()
	for { // at once, unless the poller could not wait
		err := unix.Waitid(unix.P_PID, e.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var status unix.WaitStatus
	pid, err := unix.Wait4(e.pid, &status, 0, nil)
	for errors.Is(err, unix.EINTR) {
		pid, err = unix.Wait4(e.pid, &status, 0, nil)
	}
	e.reaped = true
	return exitOf(pid == e.pid, status)
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

func (e *execution) append(stream int, p []byte) {
	if len(p) == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone {
		return
	}
	e.streams[stream].write(p)
	e.wakeLocked()
}

func (e *execution) finish() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open--
	e.wakeLocked()
}

func (e *execution) wakeLocked() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// pull acknowledges, says that the program was started, waits for something
// else to say, and says it. begin is called once it is sure that the answer is
// frames and no refusal.
func (e *execution) pull(ctx context.Context, request guestwire.Pull, begin func() io.Writer) error {
	cursor := [2]int64{request.Stdout, request.Stderr}
	if err := e.acknowledge(cursor, request.WaitMS); err != nil {
		return err
	}
	w := begin()
	if err := e.writeStarted(w); err != nil {
		return err
	}
	deadline := time.NewTimer(time.Duration(request.WaitMS) * time.Millisecond)
	defer deadline.Stop()
	e.await(ctx, cursor, deadline.C)
	left := guestwire.MaxPullBytes
	buf := buffers.Get().(*[64 << 10]byte) //nolint:forcetypeassert // the pool holds nothing else
	defer buffers.Put(buf)
	for progress := true; progress; {
		progress = false
		for i := range cursor {
			n, from := e.peek(i, cursor[i], buf[:min(left, len(buf))])
			if n == 0 {
				continue
			}
			frame := guestwire.Frame{Type: guestwire.StdoutFrame + guestwire.FrameType(i), Offset: from, Payload: buf[:n]}
			if err := guestwire.WriteFrame(w, frame); err != nil {
				return err
			}
			cursor[i], left, progress = from+int64(n), left-n, true
		}
	}
	return e.writeExit(w, cursor)
}

func (e *execution) writeStarted(w io.Writer) error {
	payload, err := encode(guestwire.Started{PID: e.pid})
	if err != nil {
		return err
	}
	return guestwire.WriteFrame(w, guestwire.Frame{Type: guestwire.StartedFrame, Payload: payload})
}

func (e *execution) acknowledge(cursor [2]int64, waitMS int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	bad := waitMS < 0 || waitMS > guestwire.MaxPullWait
	for i := range cursor {
		bad = bad || cursor[i] < 0 || cursor[i] > e.streams[i].end
	}
	if bad {
		return refuse(guestwire.BadRequest, "offset beyond what was written, or a wait out of range")
	}
	for i := range cursor {
		e.streams[i].ack(cursor[i])
	}
	return nil
}

// await returns when there is output past the cursor, the execution is over or
// forgotten, or timeout or ctx say so.
func (e *execution) await(ctx context.Context, cursor [2]int64, timeout <-chan time.Time) {
	for {
		e.mu.Lock()
		ready := e.status != nil || e.gone || e.streams[0].end > cursor[0] || e.streams[1].end > cursor[1]
		changed := e.changed
		e.mu.Unlock()
		if ready {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (e *execution) peek(stream int, offset int64, p []byte) (n int, from int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.streams[stream].read(p, offset)
}

// writeExit adds the exit once all output was sent.
func (e *execution) writeExit(w io.Writer, cursor [2]int64) error {
	e.mu.Lock()
	status := e.status
	e.mu.Unlock()
	if status == nil || cursor != [2]int64{status.StdoutBytes, status.StderrBytes} {
		return nil
	}
	payload, err := encode(status)
	if err != nil {
		return err
	}
	return guestwire.WriteFrame(w, guestwire.Frame{Type: guestwire.ExitFrame, Payload: payload})
}

// signal sends to the process group while the program runs. SIGKILL also
// reaches every process of the cgroup, at any time.
func (e *execution) signal(name string) error {
	number, ok := guestwire.SignalNumber(name)
	if !ok {
		return refuse(guestwire.BadRequest, "no such signal")
	}
	e.mu.Lock()
	if !e.reaped { // under the lock: the pid cannot be reaped and used again meanwhile
		_ = unix.Kill(-e.pid, syscall.Signal(number))
	}
	e.mu.Unlock()
	if number != int(syscall.SIGKILL) {
		return nil
	}
	if err := e.agent.killAll(e); err != nil {
		return refuse(guestwire.Failed, err.Error())
	}
	return nil
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
		e.agent.tree.removeSoon(ctx, e.id)
	}
	e.mu.Lock()
	e.gone = true
	for i := range e.streams {
		e.streams[i].release()
	}
	e.wakeLocked()
	e.mu.Unlock()
	e.agent.disown(e)
	return nil
}
