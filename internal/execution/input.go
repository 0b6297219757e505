package execution

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
)

// Bounds of what is sent to a program's stdin.
const (
	// MaxInput is how many bytes one Input may have.
	MaxInput = guestwire.MaxStdin
	// inputWait is how long one Input waits for the program to read.
	inputWait = 10 * time.Second
)

// Input is a piece for a program's stdin.
type Input struct {
	Offset int64 // of Data[0] in all that was ever sent; a repeat adds nothing twice
	Data   []byte
	Close  bool // stdin ends behind Data
}

// Taken says how far stdin is.
type Taken struct {
	Offset int64 // what is below is with the program; go on from here
	Closed bool  // no more is taken
	Behind bool  // the program has not read the text of its start yet: nothing of this was looked at
}

// Stdin sends a piece to the stdin of a running execution, and waits until the
// program has taken it, at most inputWait.
func (m *Manager) Stdin(ctx context.Context, sandboxID, id string, in Input) (Taken, error) {
	if in.Offset < 0 {
		return Taken{}, fault.Param("offset", "offset must be 0 or more")
	}
	if len(in.Data) > MaxInput {
		return Taken{}, fault.Param("data", "data must be at most %d bytes; send it in pieces", MaxInput)
	}
	r, err := m.talk(ctx, sandboxID, id)
	if err != nil {
		return Taken{}, err
	}
	e := r.snapshot()
	switch {
	case !e.StdinOpen:
		return Taken{}, fault.Param("execution", "this execution was started without stdin_open or tty, so its stdin takes nothing")
	case e.TTY && in.Close:
		return Taken{}, fault.Param("close", "a terminal's stdin has no end; send the byte 4 (Ctrl-D), or cancel the execution")
	}
	ctx, unbind := r.session.Bind(ctx)
	defer unbind()
	until := time.Now().Add(inputWait)
	if fed, ok := r.input.await(ctx, until); !ok {
		return Taken{Offset: fed, Behind: true}, nil
	}
	taken, err := r.send(ctx, in.Offset, in.Data, in.Close, until)
	if guestwire.Refused(err, guestwire.BadRequest) {
		return Taken{}, fault.Param("offset", "offset is not what was taken so far; a request with offset 0 and no data tells what that is")
	}
	return Taken{Offset: taken.Offset, Closed: taken.Closed}, r.explain(err)
}

// send sends a piece once, which the program may read until then. No wait is so
// long that the agent would count as silent.
func (r *run) send(ctx context.Context, offset int64, data []byte, end bool, until time.Time) (taken guestwire.StdinTaken, err error) {
	wait := min(max(time.Until(until), 0), r.m.cfg.AgentTimeout/4)
	err = r.insist(ctx, func(ctx context.Context) (err error) {
		taken, err = r.session.Agent().Stdin(ctx, r.snapshot().ID, offset, data, end, wait)
		return err
	})
	return taken, err
}

// explain makes a caller's error of what came of a call to the agent.
func (r *run) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case closed(r.session.Done()) && r.session.Reason() == "":
		return shuttingDown()
	case closed(r.session.Done()), guestwire.Refused(err, guestwire.NoExecution):
		return notRunning(Execution{})
	}
	return fault.Wrap(err, fault.GuestUnreachable, "the guest did not answer; try again, or create another sandbox")
}

// Resize sets the size of a running execution's terminal.
func (m *Manager) Resize(ctx context.Context, sandboxID, id string, size Size) error {
	if err := size.check(); err != nil {
		return err
	}
	r, err := m.talk(ctx, sandboxID, id)
	if err != nil {
		return err
	}
	if !r.snapshot().TTY {
		return NotTTY()
	}
	ctx, unbind := r.session.Bind(ctx)
	defer unbind()
	err = r.insist(ctx, func(ctx context.Context) error {
		return r.session.Agent().Resize(ctx, id, guestwire.Size(size))
	})
	return r.explain(err)
}

// NotTTY is the refusal of what only an execution on a terminal has.
func NotTTY() error {
	return fault.New(fault.ExecutionNotTTY, "this execution has no terminal; start it with tty: true")
}

// talk finds a running execution whose program was started.
func (m *Manager) talk(ctx context.Context, sandboxID, id string) (*run, error) {
	r, err := m.running(ctx, sandboxID, id)
	if err != nil {
		return nil, err
	}
	select {
	case <-r.started:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if closed(r.finished) {
		return nil, notRunning(r.snapshot())
	}
	return r, nil
}

// input is the text with which stdin begins. It waits in a file, so that at most
// inputPiece of it is held in memory for a program that does not read, and so
// that the next daemon goes on with it.
type input struct {
	path string
	open bool          // stdin stays open behind it
	fed  chan struct{} // closed when the program has all of it, or takes no more
	at   chan int64    // holds how far it is
	size int64         // bytes; set at construction
}

// spoolInput writes the text to its file, before the program is started.
func spoolInput(dir, text string, open bool) (*input, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, inputFile), []byte(text), 0o600); err != nil {
		return nil, err
	}
	return findInput(dir, open), nil
}

const inputFile = "stdin"

// findInput finds a text that is not fed yet, or returns nil.
func findInput(dir string, open bool) *input {
	path := filepath.Join(dir, inputFile)
	info, err := os.Lstat(path)
	if err != nil {
		return nil
	}
	i := &input{path: path, open: open, size: info.Size(), fed: make(chan struct{}), at: make(chan int64, 1)}
	i.at <- 0
	return i
}

// feed hands the text to the program. It ends with ctx, or when the program has
// the text.
func (i *input) feed(ctx context.Context, r *run) {
	if i == nil {
		return
	}
	select {
	case <-r.started:
	case <-ctx.Done():
		return
	}
	file, err := os.Open(i.path)
	if err == nil {
		err = i.copy(ctx, r, file)
		_ = file.Close() // only read
	}
	if ctx.Err() != nil {
		return // the next daemon goes on with it, or nobody
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.log.Error("text for stdin is lost", "error", err)
	}
	i.remove()
	close(i.fed)
}

// inputPiece is how much of the text is held and sent at once: what a pipe holds.
const inputPiece = 64 << 10

func (i *input) copy(ctx context.Context, r *run, file *os.File) error {
	buf := make([]byte, min(i.size+1, inputPiece))
	var pace pacer
	for at := int64(0); ; {
		n, err := file.ReadAt(buf, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		last := errors.Is(err, io.EOF)
		if n == 0 && i.open {
			return nil
		}
		taken, err := r.send(ctx, at, buf[:n], last && !i.open, time.Now().Add(inputWait))
		if err != nil || taken.Closed {
			return err
		}
		pace.after(ctx, taken.Offset-at)
		at = taken.Offset
		<-i.at
		i.at <- at
	}
}

// await waits until the text of the start is taken, at most until then.
func (i *input) await(ctx context.Context, until time.Time) (at int64, fed bool) {
	if i == nil {
		return 0, true
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-i.fed:
		return 0, true
	case <-timer.C:
	case <-ctx.Done():
	}
	at = <-i.at
	i.at <- at
	return at, false
}

// remove forgets the text.
func (i *input) remove() {
	if i != nil {
		_ = os.Remove(i.path) // else it goes with the sandbox's output
	}
}
