package httpapi

import (
	"context"
	"errors"
	"sync"

	"github.com/microvmd/microvm/internal/fault"
)

// errStopping is the cause with which a watch ends when the server stops.
var errStopping = errors.New("the server is stopping")

// watches are the requests that have no end of their own: streams and
// terminals. The server ends them when it stops, and waits for the terminals,
// whose connections are no longer net/http's.
type watches struct {
	mu      sync.Mutex
	stopped bool                            // guarded by mu
	next    int                             // guarded by mu
	ends    map[int]context.CancelCauseFunc // guarded by mu
	idle    chan struct{}                   // guarded by mu: made by wait, closed with the last of them
}

// begin counts one more. Its context ends with errStopping when the server
// stops; done is called at its end.
func (w *watches) begin(ctx context.Context) (bound context.Context, done func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return nil, nil, fault.New(fault.ShuttingDown, "the daemon is stopping; repeat after the seconds in Retry-After")
	}
	bound, end := context.WithCancelCause(ctx)
	if w.ends == nil {
		w.ends = map[int]context.CancelCauseFunc{}
	}
	w.next++
	id := w.next
	w.ends[id] = end
	return bound, func() {
		end(nil)
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.ends, id)
		if len(w.ends) == 0 && w.idle != nil {
			close(w.idle)
			w.idle = nil
		}
	}, nil
}

// stop ends them all, and refuses others.
func (w *watches) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	for _, end := range w.ends {
		end(errStopping)
	}
}

// wait returns when all have ended, or ctx has.
func (w *watches) wait(ctx context.Context) error {
	w.mu.Lock()
	if len(w.ends) == 0 {
		w.mu.Unlock()
		return nil
	}
	if w.idle == nil {
		w.idle = make(chan struct{})
	}
	idle := w.idle
	w.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
