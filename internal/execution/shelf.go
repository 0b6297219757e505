package execution

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// shelf is the account of the output that is kept on disk of executions that
// have ended. Without its bound a sandbox that runs long and prints much would
// fill the host's disk. What goes is the oldest of the sandbox that has most,
// so that one cannot push out what others keep.
type shelf struct {
	most int64 // bytes

	mu    sync.Mutex
	sum   int64           // guarded by mu
	boxes map[string]*box // guarded by mu; by sandbox id
}

// box is the output of one sandbox's executions, oldest first; never empty.
type box struct {
	books []book
	bytes int64
}

// book is the output of one execution.
type book struct {
	sandbox, id string
	bytes       int64
}

// put adds a book and returns those that must go.
func (s *shelf) put(b book) (gone []book) {
	if b.bytes == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	into := s.boxes[b.sandbox]
	if into == nil {
		into = &box{}
		s.boxes[b.sandbox] = into
	}
	into.books = append(into.books, b)
	into.bytes += b.bytes
	s.sum += b.bytes
	for s.sum > s.most {
		from := s.fullestLocked()
		oldest := from.books[0]
		gone = append(gone, oldest)
		from.books = from.books[1:]
		from.bytes -= oldest.bytes
		s.sum -= oldest.bytes
		if len(from.books) == 0 {
			delete(s.boxes, oldest.sandbox)
		}
	}
	return gone
}

func (s *shelf) fullestLocked() *box {
	fullest := &box{}
	for _, other := range s.boxes {
		if other.bytes > fullest.bytes {
			fullest = other
		}
	}
	return fullest
}

// drop takes all books of a sandbox out.
func (s *shelf) drop(sandbox string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if gone := s.boxes[sandbox]; gone != nil {
		s.sum -= gone.bytes
		delete(s.boxes, sandbox)
	}
}

// shelve counts the output of an execution that has ended, and removes what
// there is no room for.
func (m *Manager) shelve(e Execution) error {
	dir := m.dir(e)
	b := book{sandbox: e.Sandbox, id: e.ID}
	for _, stream := range []string{"stdout", "stderr"} {
		info, err := os.Lstat(filepath.Join(dir, stream))
		if err == nil {
			b.bytes += info.Size()
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	var all []error
	for _, gone := range m.shelf.put(b) {
		all = append(all, os.RemoveAll(m.dir(Execution{ID: gone.id, Sandbox: gone.sandbox})))
	}
	return errors.Join(all...)
}
