package execution

import (
	"errors"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// shelf is the account of the output that is kept on disk, of the whole node and
// of each sandbox: without its bounds a sandbox that runs long and prints much
// would fill the host's disk. What goes first is the oldest of a sandbox that is
// over its bound, or, when the node is, of the one that has most, so that one
// cannot push out what others keep. Of one sandbox, executions that run lose what
// they have so far only when nothing is left of any that has ended.
type shelf struct {
	most    int64 // bytes of all
	mostBox int64 // bytes of one sandbox

	mu    sync.Mutex
	sum   int64           // guarded by mu
	boxes map[string]*box // guarded by mu; by sandbox id
}

// box is the output of one sandbox's executions, oldest first; never empty.
type box struct {
	books []*book
	bytes int64
}

// book is the output of one execution.
type book struct {
	sandbox, id string
	bytes       int64
	live        *run  // nil: it has ended
	input       int64 // of bytes: what stdin is still to get, which stays
}

// put counts a book, which may have been counted with other bytes before, and
// returns those that must go to make room for it.
func (s *shelf) put(b book) (gone []book) {
	s.mu.Lock()
	defer s.mu.Unlock()
	into := s.boxes[b.sandbox]
	if into == nil {
		into = &box{}
		s.boxes[b.sandbox] = into
	}
	mine := into.find(b.id)
	if mine == nil {
		mine = &book{sandbox: b.sandbox, id: b.id}
		into.books = append(into.books, mine)
	}
	mine.live, mine.input = b.live, b.input
	s.addLocked(mine, b.bytes-mine.bytes)
	for into.bytes > s.mostBox || s.sum > s.most {
		from := into
		if into.bytes <= s.mostBox {
			from = s.fullestLocked()
		}
		victim := from.victim(mine)
		if victim == nil {
			break // what is left is the one that was put
		}
		gone = append(gone, *victim)
		s.addLocked(victim, victim.input-victim.bytes)
	}
	return gone
}

// addLocked counts n more bytes of a book; one without any is no book.
func (s *shelf) addLocked(b *book, n int64) {
	b.bytes += n
	s.sum += n
	in := s.boxes[b.sandbox]
	if in.bytes += n; b.bytes > 0 {
		return
	}
	for i, other := range in.books {
		if other == b {
			in.books = append(in.books[:i:i], in.books[i+1:]...)
			break
		}
	}
	if len(in.books) == 0 {
		delete(s.boxes, b.sandbox)
	}
}

func (b *box) find(id string) *book {
	for i := len(b.books) - 1; i >= 0; i-- { // most often one of the last
		if b.books[i].id == id {
			return b.books[i]
		}
	}
	return nil
}

// victim is the oldest that has ended, or else the oldest; but never one that
// runs and was just put.
func (b *box) victim(put *book) (victim *book) {
	for _, one := range b.books {
		if one.live == nil {
			return one
		}
		if victim == nil && one != put && one.bytes > one.input {
			victim = one
		}
	}
	return victim
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

// shelve counts the output of an execution that has ended.
func (m *Manager) shelve(e Execution) {
	b := book{sandbox: e.Sandbox, id: e.ID}
	for _, stream := range []Stream{Stdout, Stderr} {
		var stat unix.Stat_t // what it takes, which is less than its size when it was dropped
		err := unix.Lstat(filepath.Join(m.dir(e), string(stream)), &stat)
		if err == nil {
			b.bytes += stat.Blocks * 512
		} else if !errors.Is(err, unix.ENOENT) {
			m.cfg.Logger.Error("cannot count output", "sandbox", e.Sandbox, "execution", e.ID, "error", err)
		}
	}
	m.makeRoom(b)
}

// reckon counts the output of an execution that runs, as it grows.
func (m *Manager) reckon(r *run) {
	input := int64(0)
	if r.input != nil && !closed(r.input.fed) {
		input = r.input.size
	}
	size := input + r.streams[0].size() + r.streams[1].size()
	if size != r.reckoned {
		r.reckoned = size
		m.makeRoom(book{sandbox: r.sandboxID, id: r.snapshot().ID, bytes: size, live: r, input: input})
	}
}

// makeRoom counts a book and removes what there is no room for.
func (m *Manager) makeRoom(b book) {
	for _, gone := range m.shelf.put(b) {
		var err error
		if gone.live != nil {
			err = gone.live.drop()
		} else {
			err = os.RemoveAll(m.dir(Execution{ID: gone.id, Sandbox: gone.sandbox}))
		}
		if err != nil {
			m.cfg.Logger.Error("cannot make room for output", "sandbox", gone.sandbox, "execution", gone.id, "error", err)
		}
	}
}

// drop gives up the output so far of an execution that runs; its readers and its
// record say so.
func (r *run) drop() error {
	return errors.Join(r.streams[0].drop(), r.streams[1].drop())
}
