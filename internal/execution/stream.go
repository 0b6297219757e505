package execution

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
)

// stream is one output stream of an execution that runs; its ring is made with
// the first byte.
type stream struct {
	path string
	next int64 // owned by the puller: the offset that follows what is in the ring

	mu   sync.Mutex
	ring *Ring         // guarded by mu; nil before the first byte and after the end
	over bool          // guarded by mu: closed
	made chan struct{} // closed when there is a ring, or never will be
}

func newStream(path string) *stream { return &stream{path: path, made: make(chan struct{})} }

// reopen finds the output that an earlier daemon kept.
func (s *stream) reopen() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.openLocked()
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		s.next = s.ring.Total()
	}
	return err
}

// openLocked opens the ring that is there. A damaged one is removed: what comes
// goes into another.
func (s *stream) openLocked() error {
	ring, err := OpenRing(s.path)
	if errors.Is(err, errRingDamaged) {
		return errors.Join(err, os.Remove(s.path))
	}
	if err != nil {
		return err
	}
	s.ring = ring
	close(s.made)
	return nil
}

// makeLocked makes the ring, unless there is one that could not be opened
// before.
func (s *stream) makeLocked() error {
	if err := s.openLocked(); err == nil || !errors.Is(err, os.ErrNotExist) && !errors.Is(err, errRingDamaged) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
		return err
	}
	ring, err := CreateRing(s.path)
	if err != nil {
		return err
	}
	s.ring = ring
	close(s.made)
	return nil
}

func (s *stream) append(offset int64, p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ring == nil {
		if err := s.makeLocked(); err != nil {
			return err
		}
	}
	if err := s.ring.Append(offset, p); err != nil {
		return err
	}
	s.next = offset + int64(len(p))
	return nil
}

// drop gives up what is kept so far, and the room that it takes on the disk.
func (s *stream) drop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ring == nil {
		return nil
	}
	return s.ring.Drop()
}

// size is what the ring takes on the disk.
func (s *stream) size() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ring == nil {
		return 0
	}
	return s.ring.Size()
}

func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	s.over = true
	if s.ring == nil {
		close(s.made)
		return
	}
	_ = s.ring.Close() // nothing is buffered: every append was a pwrite
	s.ring = nil
}

func (s *stream) tail() (Tail, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ring == nil {
		return readTail(s.path)
	}
	return s.ring.tail()
}

// read is Ring.ReadAt; where there is nothing to read yet, more is closed once
// there may be.
func (s *stream) read(from int64, limit int) (p []byte, at int64, more <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ring != nil:
		more = s.ring.Changed()
		p, at, err = s.ring.ReadAt(from, limit)
		return p, at, more, err
	case s.over: // the end, or the daemon's, is about to be told
		return nil, from, nil, nil
	default:
		return nil, from, s.made, nil
	}
}

// readRing reads at most maxEventData from a ring that nobody writes. A stream
// to which nothing was written has no file.
func readRing(path string, from int64) (data []byte, at int64, err error) {
	ring, err := OpenRing(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, from, nil
	}
	if err != nil {
		return nil, from, err
	}
	defer func() { _ = ring.Close() }()
	return ring.ReadAt(from, maxEventData)
}

// readTail reads a whole ring.
func readTail(path string) (Tail, error) {
	ring, err := OpenRing(path)
	if errors.Is(err, os.ErrNotExist) {
		return Tail{}, nil
	}
	if err != nil {
		return Tail{}, err
	}
	defer func() { _ = ring.Close() }()
	return ring.tail()
}

// tail reads what the ring has from its last gap on.
func (r *Ring) tail() (Tail, error) {
	t := Tail{Offset: r.Start()}
	for next := t.Offset; ; {
		data, at, err := r.ReadAt(next, RingBytes)
		if err != nil || len(data) == 0 {
			return t, err
		}
		if at > next {
			t = Tail{Offset: at} // what lies before the gap does not join on
		}
		t.Bytes = append(t.Bytes, data...)
		next = at + int64(len(data))
	}
}
