package httpapi

import (
	"context"
	"sync"
	"time"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
)

// stdin is the input of a fake program: a bounded pipe with offsets, as the
// agent and the manager of executions make it.
type stdin struct {
	mu     sync.Mutex
	spool  int64         // guarded by mu: bytes of the text of the start that are still to be read
	taken  []byte        // guarded by mu: all that was taken
	room   int           // guarded by mu: what the pipe still takes; negative for no bound
	closed bool          // guarded by mu
	asked  int           // guarded by mu: requests
	err    error         // guarded by mu
	late   error         // guarded by mu: comes once, after something was taken
	more   chan struct{} // guarded by mu: closed when there is room again
}

func newStdin() *stdin { return &stdin{room: -1, more: make(chan struct{})} }

func (s *stdin) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.taken)
}

// read makes room, as a program does that reads.
func (s *stdin) read(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room = n
	close(s.more)
	s.more = make(chan struct{})
}

const stdinWait = 10 * time.Second

func (s *stdin) take(ctx context.Context, in execution.Input) (execution.Taken, error) {
	over := time.After(stdinWait)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	for {
		at := int64(len(s.taken))
		switch {
		case s.err != nil:
			return execution.Taken{}, s.err
		case s.spool > 0:
		case in.Offset > at:
			return execution.Taken{}, fault.Param("offset", "offset is beyond what was taken")
		default:
			fresh := in.Data[min(at-in.Offset, int64(len(in.Data))):]
			if s.room >= 0 && len(fresh) > s.room {
				fresh = fresh[:s.room]
			}
			s.taken = append(s.taken, fresh...)
			if s.room >= 0 {
				s.room -= len(fresh)
			}
			at = int64(len(s.taken))
			if err := s.late; err != nil && len(fresh) > 0 {
				s.late = nil
				return execution.Taken{}, err
			}
			if at >= in.Offset+int64(len(in.Data)) {
				s.closed = s.closed || in.Close
				return execution.Taken{Offset: at, Closed: s.closed}, nil
			}
		}
		more := s.more
		s.mu.Unlock()
		late := false
		select {
		case <-more:
		case <-over:
			late = true
		case <-ctx.Done():
		}
		s.mu.Lock()
		if late {
			return execution.Taken{Offset: int64(len(s.taken)), Behind: s.spool > 0}, nil
		}
		if ctx.Err() != nil {
			return execution.Taken{}, ctx.Err()
		}
	}
}
