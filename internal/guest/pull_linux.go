package guest

import (
	"context"
	"io"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
)

// pull acknowledges, says that the program was started, waits for something
// else to say, and says it.
//
// What is known goes out before the wait, and in one write with what follows
// where nothing is waited for. For a program that ends soon the write of its own
// is dear: with the interrupt that confirms it, it took 6 of the 70 ms of an
// execution of true in an emulated host. But only time tells a program that ends
// soon from one that thinks for an hour, and whoever started that one is told its
// pid, and that it runs, at once.
func (e *execution) pull(ctx context.Context, request guestwire.Pull, w *reply) error {
	cursor := [2]int64{request.Stdout, request.Stderr}
	if err := e.acknowledge(cursor, request.WaitMS); err != nil {
		return err
	}
	w.header(200, "application/octet-stream", -1)
	if err := e.writeStarted(w); err != nil {
		return err
	}
	if ready, changed := e.ready(cursor); !ready && request.WaitMS > 0 {
		if err := w.flush(); err != nil {
			return err
		}
		e.await(ctx, cursor, changed, time.Duration(request.WaitMS)*time.Millisecond)
	}
	left := guestwire.MaxPullBytes
	buf := buffers.Get().(*chunk) //nolint:forcetypeassert // the pool holds nothing else
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
	took := false
	for i := range cursor {
		took = took || cursor[i] > e.streams[i].start
		e.streams[i].ack(cursor[i])
	}
	if took {
		e.wakeLocked() // whoever waits for room
	}
	return nil
}

// ready says whether there is output past the cursor, or the execution is over
// or forgotten; changed is closed when that may be another answer.
func (e *execution) ready(cursor [2]int64) (ready bool, changed <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.status != nil || e.gone || e.streams[0].end > cursor[0] || e.streams[1].end > cursor[1], e.changed
}

// await returns when it is ready, or wait or ctx is over.
func (e *execution) await(ctx context.Context, cursor [2]int64, changed <-chan struct{}, wait time.Duration) {
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for ready := false; !ready; ready, changed = e.ready(cursor) {
		select {
		case <-changed:
		case <-timeout.C:
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
	err = guestwire.WriteFrame(w, guestwire.Frame{Type: guestwire.ExitFrame, Payload: payload})
	e.mu.Lock()
	defer e.mu.Unlock()
	e.told = e.told || err == nil
	return err
}
