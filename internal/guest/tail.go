package guest

import (
	"math/bits"
	"sync"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
)

// minTail is what every tail may hold whatever the budget says, in bytes.
const minTail = 4 << 10

// budget bounds the bytes that all tails of an agent hold together, so that
// many loud programs cannot take the guest's memory through the agent.
type budget struct {
	mu   sync.Mutex
	free int64 // guarded by mu
}

// take reserves n bytes, all or nothing.
func (b *budget) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.free < n {
		return false
	}
	b.free -= n
	return true
}

func (b *budget) has(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.free >= n
}

func (b *budget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += n
}

// tail keeps the newest bytes of one stream that the host has not
// acknowledged, at most guestwire.KeepBytes. Offsets are absolute: the first
// byte that was ever written has offset 0. It grows by doubling while the
// budget allows it, lets the oldest bytes fall when it cannot, and gives its
// memory back when all is acknowledged. It is not safe for concurrent use: the
// execution's lock guards it.
type tail struct {
	budget *budget
	ring   []byte    // len is a power of two, or nil
	start  int64     // offset of the oldest byte kept
	end    int64     // offset after the newest byte: all that was ever written
	taken  time.Time // when the host last took something, or all that there was had been taken
}

// wouldDrop says whether a write of n bytes makes others fall that the host has
// not taken.
func (t *tail) wouldDrop(n int) bool {
	want := t.end - t.start + int64(n)
	switch {
	case want <= int64(max(len(t.ring), minTail)):
		return false
	case want > guestwire.KeepBytes:
		return true
	}
	return !t.budget.has(t.sizeFor(want) - t.charged())
}

// write appends p. It never fails and never blocks.
func (t *tail) write(p []byte) {
	if t.start == t.end {
		t.taken = time.Now()
	}
	t.end += int64(len(p))
	if len(p) > guestwire.KeepBytes {
		p = p[len(p)-guestwire.KeepBytes:]
	}
	t.start = max(t.start, t.grow(t.end-t.start))
	if len(p) > len(t.ring) {
		p = p[len(p)-len(t.ring):]
	}
	at := t.end - int64(len(p))
	n := copy(t.ring[t.index(at):], p)
	copy(t.ring, p[n:])
}

// grow makes room for want bytes as far as it may, and returns the least
// offset that can be kept from now on. The bytes from start up to what was
// written before keep their offsets.
func (t *tail) grow(want int64) int64 {
	size := t.sizeFor(want)
	for size > int64(len(t.ring)) {
		if size == minTail || t.budget.take(size-t.charged()) {
			t.resize(size)
			break
		}
		size /= 2
	}
	return t.end - int64(len(t.ring))
}

// sizeFor is the size of a ring that keeps want bytes.
func (t *tail) sizeFor(want int64) int64 {
	size := int64(max(len(t.ring), minTail))
	for size < min(want, guestwire.KeepBytes) {
		size *= 2
	}
	return size
}

// rings were given back and can be used again, by size: a stream that flows needs
// a ring anew after each reply that took all of it. Garbage collection takes what
// is not used.
var rings [9]sync.Pool // minTail to guestwire.KeepBytes

func newRing(size int64) []byte {
	if ring, ok := rings[bits.Len64(uint64(size/minTail))-1].Get().(*[]byte); ok {
		return *ring
	}
	return make([]byte, size)
}

func dropRing(ring []byte) {
	if len(ring) > 0 {
		rings[bits.Len(uint(len(ring)/minTail))-1].Put(&ring)
	}
}

// resize moves the kept bytes to a larger ring. Offsets past the old ring are
// not written yet; what they would show is never read before it is written.
func (t *tail) resize(size int64) {
	old := t.ring
	t.ring = newRing(size)
	if len(old) == 0 {
		return
	}
	defer dropRing(old)
	from := t.start
	for from < t.start+int64(len(old)) {
		i := from & int64(len(old)-1)
		n := copy(t.ring[t.index(from):], old[i:])
		from += int64(n)
	}
}

// charged is what the tail has taken from the budget.
func (t *tail) charged() int64 {
	if len(t.ring) <= minTail {
		return minTail
	}
	return int64(len(t.ring))
}

// ack lets fall what lies below offset.
func (t *tail) ack(offset int64) {
	if offset > t.start {
		t.taken = time.Now()
	}
	t.start = max(t.start, min(offset, t.end))
	if t.start == t.end {
		t.release()
	}
}

// release gives the memory back; offsets stay.
func (t *tail) release() {
	t.budget.give(t.charged() - minTail)
	dropRing(t.ring)
	t.ring, t.start = nil, t.end
}

// read copies bytes from offset on, or from the oldest kept one if that is
// later, into p; it returns how many and where the first of them lies.
func (t *tail) read(p []byte, offset int64) (n int, from int64) {
	from = max(offset, t.start)
	p = p[:min(int64(len(p)), max(t.end-from, 0))]
	for n < len(p) {
		n += copy(p[n:], t.ring[t.index(from+int64(n)):])
	}
	return n, from
}

func (t *tail) index(offset int64) int64 { return offset & int64(len(t.ring)-1) }
