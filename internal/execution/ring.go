package execution

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// What a ring holds. Two streams of one execution have a ring each.
const (
	// RingBytes is how many bytes of a stream's tail a ring keeps.
	RingBytes = 1 << 20
	// ringSlack is the room beside the window into which the next bytes go
	// before a header counts them; also the most that one pwrite writes.
	ringSlack = 64 << 10
	// maxOffset bounds what a hostile agent can claim; up to here JSON and
	// JavaScript hold a number exactly.
	maxOffset = 1 << 53
)

// Ring is the file that keeps the tail of one output stream. One writer appends
// at absolute offsets (byte 0 is the first that the program wrote), any number
// of readers in this process read at absolute offsets.
//
// The layout is one page of header, then a circle of window + slack bytes in
// which the byte at offset n lies at n mod (window + slack), always. Chosen over
//   - two half-size files in turn: simple, but drops half the tail at once;
//   - growing the modulus by doubling: moves bytes at each step, and a crash in
//     the middle of a move must be repaired. With a fixed modulus the file
//     grows by itself as it is first written, page by page (a short output
//     costs 8 KiB of disk), and growth is no special case;
//   - a segmented log: a directory per stream, and deletes to order.
//
// A write goes data first, header second. The slack makes this safe without a
// copy: new bytes only overwrite what the last header does not promise. The
// header has two slots that are written in turn, so one that was torn leaves
// the one before it, and a crash at any point loses at most the append that was
// not acknowledged. This holds for kill -9 of the daemon, because the page
// cache is the kernel's. Nothing is synced: after a power cut or a kernel panic
// a ring may be missing, short, or hold zeros where bytes were.
//
// Where the agent could not keep bytes until they were taken, the append after
// them starts beyond Total. What lies between is recorded as a gap and never
// read: ReadAt jumps over it and the jump shows what was lost.
//
// Memory: the struct only. A reader brings the memory for what it reads.
type Ring struct {
	path string
	file ringFile

	writing sync.Mutex // held by Append and Drop: the only ones that change state
	dropped int64      // guarded by writing: bytes below it take no room

	mu      sync.RWMutex
	state   ringState     // guarded by mu: what the last written header says
	changed chan struct{} // guarded by mu: closed at the next change; nil when nobody asked
	closed  bool          // guarded by mu
}

// ringFile is what a ring needs of its file. Tests inject failures here.
type ringFile interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Punch gives the disk back what [from, to) of the file takes; it reads as
	// zeros from then on.
	Punch(from, to int64) error
}

// diskFile is the ringFile of a real ring.
type diskFile struct{ *os.File }

func (f diskFile) Punch(from, to int64) error {
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, to-from)
}

// CreateRing makes the ring's file, which must not be there yet, with mode 0600.
// It appears whole or not at all.
func CreateRing(path string) (*Ring, error) {
	return createRing(path, RingBytes, ringSlack)
}

func createRing(path string, window, slack int64) (*Ring, error) {
	fail := func(err error) (*Ring, error) { return nil, fmt.Errorf("create ring: %w", err) }
	// A header is written under another name first: a crash between creating
	// and writing would leave a file that OpenRing has to refuse.
	draft := path + ".new"
	file, err := os.OpenFile(draft, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fail(err)
	}
	state := ringState{window: window, slack: slack, seq: 1}
	_, err = file.WriteAt(state.encode(), state.slotAt())
	if err == nil {
		err = os.Link(draft, path) // unlike rename it refuses a path that is taken
	}
	if gone := os.Remove(draft); err == nil {
		err = gone
	}
	if err != nil {
		return fail(errors.Join(err, file.Close()))
	}
	return &Ring{path: path, file: diskFile{file}, state: state}, nil
}

// errRingDamaged is a file that is no ring, or not any more.
var errRingDamaged = errors.New("damaged")

// OpenRing opens a ring that CreateRing made. A file that is something else,
// shorter than it promises, or damaged in both headers is refused with
// errRingDamaged.
func OpenRing(path string) (*Ring, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open ring: %w", err)
	}
	var size int64
	info, err := file.Stat()
	if err == nil {
		if size = info.Size(); !info.Mode().IsRegular() {
			err = fmt.Errorf("%s is no regular file: %w", path, errRingDamaged)
		}
	}
	var state ringState
	if err == nil {
		state, err = readRingState(file, size)
		if err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open ring: %w", errors.Join(err, file.Close()))
	}
	return &Ring{path: path, file: diskFile{file}, state: state}, nil
}

// Append adds p, whose first byte the program wrote at offset. It is written
// and survives the daemon's death when Append returns nil.
//
// Bytes before Total are a repeat and ignored: the first copy stays, and what
// was lost to a gap stays lost. An offset beyond Total records a gap; an empty p
// there declares that the stream went on but nothing of it is left. An error
// leaves the ring as it was or with a part of p; the same call may be repeated.
func (r *Ring) Append(offset int64, p []byte) error {
	if offset < 0 || offset > maxOffset-int64(len(p)) {
		return fmt.Errorf("append to ring: %d bytes at offset %d: offsets go from 0 to %d", len(p), offset, int64(maxOffset))
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	state, err := r.now()
	if err != nil {
		return fmt.Errorf("append to ring: %w", err)
	}
	if known := state.total - offset; known > 0 {
		if known >= int64(len(p)) {
			return nil
		}
		offset, p = state.total, p[known:]
	}
	if offset > state.total {
		// The gap must be in the header before data lands behind it: the new
		// bytes lie on positions that the old header may still promise.
		state.addGap(offset)
		if err := r.commit(&state); err != nil {
			return err
		}
	}
	for len(p) > 0 {
		chunk := p[:min(int64(len(p)), state.slack)]
		for _, part := range state.parts(state.total, int64(len(chunk))) {
			if _, err := r.file.WriteAt(chunk[part.from:part.to], part.at); err != nil {
				return fmt.Errorf("append to ring: %w", err)
			}
		}
		state.advance(int64(len(chunk)))
		if err := r.commit(&state); err != nil {
			return err
		}
		p = p[len(chunk):]
	}
	return nil
}

// now is the state for one who holds writing.
func (r *Ring) now() (ringState, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.closed {
		return ringState{}, fmt.Errorf("%s: %w", r.path, os.ErrClosed)
	}
	return r.state, nil
}

// Drop gives up all bytes that are there, and the room that they take on the
// disk. Readers are told as of bytes that fell out of the window.
func (r *Ring) Drop() error {
	r.writing.Lock()
	defer r.writing.Unlock()
	state, err := r.now()
	if err != nil {
		return fmt.Errorf("drop from ring: %w", err)
	}
	state.dropBefore(state.total)
	if err := r.commit(&state); err != nil {
		return err
	}
	if err := r.file.Punch(ringDataAt, ringDataAt+state.window+state.slack); err != nil {
		return fmt.Errorf("drop from ring: %w", err)
	}
	r.dropped = state.total
	return nil
}

// Size is what the ring takes on the disk at most.
func (r *Ring) Size() int64 {
	r.writing.Lock()
	defer r.writing.Unlock()
	r.mu.RLock()
	defer r.mu.RUnlock()
	const page = 4096
	n := min(r.state.total-r.dropped, r.state.window+r.state.slack)
	return ringDataAt + (n+page-1)/page*page
}

// commit writes the header and then shows the new state to readers. A reader
// holds mu while it reads, so when commit had mu nobody reads by an older state,
// and the next chunk may overwrite what only that one promised.
func (r *Ring) commit(state *ringState) error {
	next := *state
	next.seq++
	if _, err := r.file.WriteAt(next.encode(), next.slotAt()); err != nil {
		// The slot may be torn. The other one still says what r.state says, and
		// the next commit writes the torn one again.
		return fmt.Errorf("append to ring: write header: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state, *state = next, next
	r.broadcastLocked()
	return nil
}

func (r *Ring) broadcastLocked() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// ReadAt returns up to limit bytes that are still there, beginning at the first
// such offset >= from. That offset is at: at > from means that the bytes
// between them fell out of the window or were lost before they came. The bytes
// have no gap in them. At the end of what there is p is empty and at is where
// the next byte will be, or from if that is beyond: ask again from at after
// Changed. limit bounds the memory taken.
func (r *Ring) ReadAt(from int64, limit int) (p []byte, at int64, err error) {
	if from < 0 || limit < 1 {
		return nil, from, fmt.Errorf("read ring: %d bytes from %d: both must be positive", limit, from)
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.closed {
		return nil, from, fmt.Errorf("read ring: %s: %w", r.path, os.ErrClosed)
	}
	at, end := r.state.readable(from)
	if n := min(end-at, int64(limit)); n > 0 {
		p = make([]byte, n)
	}
	for _, part := range r.state.parts(at, int64(len(p))) {
		if _, err := r.file.ReadAt(p[part.from:part.to], part.at); err != nil {
			return nil, from, fmt.Errorf("read ring: %s: %w", r.path, err)
		}
	}
	return p, at, nil
}

// Total is the offset behind the last byte known: all that the program wrote
// until then, also what is not here any more.
func (r *Ring) Total() int64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.state.total
}

// Start is the first offset still there; Start == Total means that nothing is.
func (r *Ring) Start() int64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.state.start
}

// Changed returns a channel that is closed when Total grows or the ring is
// closed. Take it before reading, else a change in between is missed:
//
//	for {
//		changed := ring.Changed()
//		p, at, err := ring.ReadAt(from, 32<<10)
//		... if len(p) == 0 wait for changed, or for the execution's end
//	}
func (r *Ring) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		done := make(chan struct{})
		close(done)
		return done
	}
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return r.changed
}

// Close waits for reads in progress and closes the file; the ring stays on
// disk. It must not run beside Append. A second Close does nothing.
func (r *Ring) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	r.broadcastLocked()
	if err := r.file.Close(); err != nil {
		return fmt.Errorf("close ring: %w", err)
	}
	return nil
}
