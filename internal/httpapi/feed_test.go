package httpapi

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/microvmd/microvm/internal/execution"
)

// feed is what a fake execution tells its followers: a list that only grows.
// Each of them reads it from its own position on.
type feed struct {
	mu     sync.Mutex
	events []execution.Event // guarded by mu
	err    error             // guarded by mu: what follows the events
	more   chan struct{}     // guarded by mu: closed with the next change
}

func newFeed(events ...execution.Event) *feed {
	return &feed{events: events, more: make(chan struct{})}
}

func (f *feed) tell(events ...execution.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, events...)
	close(f.more)
	f.more = make(chan struct{})
}

func (f *feed) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
	close(f.more)
	f.more = make(chan struct{})
}

func (f *feed) follow(from execution.Position) *feedReader {
	return &feedReader{feed: f, begun: from != execution.Position{}, at: from}
}

type feedReader struct {
	feed  *feed
	begun bool // EventStarted is not to be told
	seen  int
	at    execution.Position
	done  bool
}

func (r *feedReader) Position() execution.Position { return r.at }

func (r *feedReader) Next(ctx context.Context) (execution.Event, error) {
	for !r.done {
		r.feed.mu.Lock()
		for ; r.seen < len(r.feed.events); r.seen++ {
			if event, ok := r.take(r.feed.events[r.seen]); ok {
				r.seen++
				r.feed.mu.Unlock()
				return event, nil
			}
		}
		err, more := r.feed.err, r.feed.more
		r.feed.mu.Unlock()
		if err != nil {
			return execution.Event{}, err
		}
		select {
		case <-more:
		case <-ctx.Done():
			return execution.Event{}, ctx.Err()
		}
	}
	return execution.Event{}, io.EOF
}

// take is what is left of an event for this reader, if anything.
func (r *feedReader) take(e execution.Event) (execution.Event, bool) {
	at := &r.at.Stdout
	if e.Stream == execution.Stderr {
		at = &r.at.Stderr
	}
	switch e.Kind {
	case execution.EventStarted:
		return e, !r.begun
	case execution.EventOutput:
		end := e.Offset + int64(len(e.Data))
		if end <= *at {
			return e, false
		}
		if *at > e.Offset {
			e.Data, e.Offset = e.Data[*at-e.Offset:], *at
		}
		*at = end
	case execution.EventTruncated:
		if e.To <= *at {
			return e, false
		}
		e.Offset, *at = max(e.Offset, *at), e.To
	case execution.EventEnded:
		r.done = true
	}
	return e, true
}

// The events of tests.
func started(pid int) execution.Event {
	return execution.Event{Kind: execution.EventStarted, PID: pid}
}

func output(stream execution.Stream, offset int64, data string) execution.Event {
	return execution.Event{Kind: execution.EventOutput, Stream: stream, Offset: offset, Data: []byte(data)}
}

func truncated(stream execution.Stream, from, to int64) execution.Event {
	return execution.Event{Kind: execution.EventTruncated, Stream: stream, Offset: from, To: to}
}

func ended(code int) execution.Event {
	return execution.Event{Kind: execution.EventEnded, Execution: execution.Execution{
		ID: executionID, Sandbox: sandboxID, Status: execution.Exited, ExitCode: &code, Created: created, Finished: created.Add(time.Second),
	}}
}

// attachedFake is the Attached of a world.
type attachedFake struct{ *world }

func (w attachedFake) Follow(_ context.Context, _, _ string, from execution.Position) (Follower, error) {
	if err := w.fail(); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.from = append(w.from, from)
	return w.feed.follow(from), nil
}

func (w attachedFake) Stdin(ctx context.Context, _, _ string, in execution.Input) (execution.Taken, error) {
	if err := w.fail(); err != nil {
		return execution.Taken{}, err
	}
	return w.stdin.take(ctx, in)
}

func (w attachedFake) Resize(_ context.Context, _, _ string, size execution.Size) error {
	if err := w.fail(); err != nil {
		return err
	}
	w.mu.Lock()
	w.sizes = append(w.sizes, size)
	w.mu.Unlock()
	if w.resized != nil {
		w.resized <- size
	}
	return nil
}
