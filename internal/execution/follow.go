package execution

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
)

// Stream names one of the two output streams.
type Stream string

// The streams. What a program on a terminal prints is all Stdout.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// Position is how far a reader is in both streams: the offsets that follow.
type Position struct{ Stdout, Stderr int64 }

// EventKind says what an Event tells.
type EventKind int

// The kinds, in the order in which a reader meets them.
const (
	EventStarted   EventKind = iota + 1 // PID
	EventOutput                         // Stream, Offset, Data
	EventTruncated                      // Stream: the bytes from Offset to To are not kept any more
	EventEnded                          // Execution; the last one
)

// Event is one thing that happened to an execution.
type Event struct {
	Kind       EventKind
	PID        int
	Stream     Stream
	Offset, To int64
	Data       []byte // at most maxEventData
	Execution  Execution
}

// maxEventData is all the memory that one reader takes, in bytes.
const maxEventData = 32 << 10

// Follower replays an execution's output from a position on and then follows
// it. It holds nothing that must be closed, and holds nobody back: a reader that
// is slower than the ring lets bytes fall is told which it missed.
// It is not safe for concurrent use.
type Follower struct {
	m       *Manager
	sandbox string
	id      string
	r       *run       // nil: it has ended, and all is kept
	ended   *Execution // what was read of the store then
	begun   bool       // EventStarted was told, or is not to be
	done    bool
	last    int // the stream that was told last; the other one comes first
	streams [2]cursor
}

type cursor struct {
	name Stream
	next int64
	path string
}

// Follow makes a reader of an execution, also of one that has ended.
func (m *Manager) Follow(ctx context.Context, sandboxID, id string, from Position) (*Follower, error) {
	e, err := m.Get(ctx, sandboxID, id)
	if err != nil {
		return nil, err
	}
	dir := m.dir(e)
	f := &Follower{
		m: m, sandbox: sandboxID, id: id, r: m.run(id), begun: from != Position{}, last: 1,
		streams: [2]cursor{
			{Stdout, from.Stdout, filepath.Join(dir, string(Stdout))},
			{Stderr, from.Stderr, filepath.Join(dir, string(Stderr))},
		},
	}
	return f, nil
}

// Position is where a reader that comes back goes on.
func (f *Follower) Position() Position { return Position{f.streams[0].next, f.streams[1].next} }

// Next waits for the next event. When ctx ends first its error comes back, and
// Next may be called again. io.EOF follows EventEnded. A daemon that stops lets
// go of its readers with fault.ShuttingDown.
func (f *Follower) Next(ctx context.Context) (Event, error) {
	if f.done {
		return Event{}, io.EOF
	}
	if f.r == nil {
		return f.nextKept(ctx)
	}
	if !f.begun {
		select {
		case <-f.r.started:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
		if event, ok := f.begin(f.r.snapshot()); ok {
			return event, nil
		}
	}
	for {
		// Taken before reading: what comes in between wakes the wait below.
		over := closed(f.r.finished)
		var more [2]<-chan struct{}
		for range f.streams {
			f.last = 1 - f.last
			c := &f.streams[f.last]
			data, at, changed, err := f.r.streams[f.last].read(c.next, maxEventData)
			if err != nil {
				return Event{}, fmt.Errorf("follow %s: %w", c.name, err)
			}
			if event, ok := c.take(data, at); ok {
				return event, nil
			}
			more[f.last] = changed
		}
		if over {
			f.r = nil
			return f.nextKept(ctx)
		}
		select {
		case <-more[0]:
		case <-more[1]:
		case <-f.r.finished:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

// take makes an event of what was read at the cursor, if that is anything.
func (c *cursor) take(data []byte, at int64) (Event, bool) {
	switch {
	case at > c.next:
		event := Event{Kind: EventTruncated, Stream: c.name, Offset: c.next, To: at}
		c.next = at // the data comes with the next call
		return event, true
	case len(data) > 0:
		event := Event{Kind: EventOutput, Stream: c.name, Offset: at, Data: data}
		c.next = at + int64(len(data))
		return event, true
	}
	return Event{}, false
}

// begin tells of the start, once, where there was one.
func (f *Follower) begin(e Execution) (Event, bool) {
	told := f.begun
	f.begun = true
	return Event{Kind: EventStarted, PID: e.PID}, !told && e.PID > 0
}

// nextKept reads on in what is kept of an execution that has ended.
func (f *Follower) nextKept(ctx context.Context) (Event, error) {
	if f.ended == nil {
		e, err := f.m.cfg.Store.Execution(ctx, f.sandbox, f.id)
		if err != nil {
			return Event{}, err
		}
		if e.Status == Running {
			return Event{}, shuttingDown()
		}
		f.ended = &e
	}
	e := *f.ended
	if event, ok := f.begin(e); ok {
		return event, nil
	}
	for i, total := range []int64{e.StdoutBytes, e.StderrBytes} {
		c := &f.streams[i]
		if c.next >= total {
			continue
		}
		data, at := f.m.readKept(c.path, c.next, total)
		if event, ok := c.take(data, at); ok {
			return event, nil
		}
	}
	f.done = true
	return Event{Kind: EventEnded, Execution: e}, nil
}

// readKept reads from a ring that nobody writes any more. What should be there
// and is not (a power cut leaves such) was lost: at is behind it.
func (m *Manager) readKept(path string, from, total int64) (data []byte, at int64) {
	data, at, err := readRing(path, from)
	if err != nil {
		m.cfg.Logger.Error("output is lost", "error", err)
	}
	if err != nil || len(data) == 0 || at > total {
		return nil, total
	}
	return data[:min(int64(len(data)), total-at)], at
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
