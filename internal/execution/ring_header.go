package execution

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
)

// The header's format, little-endian. Two slots lie in the first page; header n
// goes to slot n mod 2, and the valid one with the higher number counts.
//
//	0  magic   8 bytes
//	8  version u32
//	12 crc     u32, CRC-32C of the slot's other bytes
//	16 seq     u64
//	24 window, slack, start, total  i64 each
//	56 gaps    u64, how many
//	64 gaps    from, to  i64 each
const (
	ringMagic    = "MVMRING\n"
	ringVersion  = 1
	ringSlotSize = 512
	ringDataAt   = 4096
	ringMaxGaps  = 24
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ringSpan is a range of offsets, [from, to).
type ringSpan struct{ from, to int64 }

// ringState is what one header says. It is copied as a value.
type ringState struct {
	window int64  // bytes kept
	slack  int64  // bytes beside them, see Ring
	seq    uint64 // of the header; ascends by one
	start  int64  // first offset still there
	total  int64  // offset behind the last byte; total-start <= window
	gaps   [ringMaxGaps]ringSpan
	ngaps  int // of gaps; ascending, apart from each other, inside (start, total]
}

func (s *ringState) slotAt() int64 { return int64(s.seq%2) * ringSlotSize }

// addGap declares [total, to) lost.
func (s *ringState) addGap(to int64) {
	if n := s.ngaps; n > 0 && s.gaps[n-1].to == s.total {
		s.gaps[n-1].to = to
	} else {
		if n == ringMaxGaps {
			// No room to remember one more: give up what is before the oldest.
			s.dropBefore(s.gaps[0].to)
		}
		s.gaps[s.ngaps] = ringSpan{s.total, to}
		s.ngaps++
	}
	s.total = to
	s.dropBefore(s.total - s.window)
}

// advance counts n bytes that lie behind total.
func (s *ringState) advance(n int64) {
	s.total += n
	s.dropBefore(s.total - s.window)
}

// dropBefore moves start up to at least offset, and over a gap that it meets.
func (s *ringState) dropBefore(offset int64) {
	s.start = max(s.start, offset)
	drop := 0
	for drop < s.ngaps && s.gaps[drop].from <= s.start {
		s.start = max(s.start, s.gaps[drop].to)
		drop++
	}
	copy(s.gaps[:], s.gaps[drop:s.ngaps])
	s.ngaps -= drop
	clear(s.gaps[s.ngaps:])
}

// readable returns the first offset >= from that is there and where the run of
// bytes that begins with it ends. At the end of what there is both are equal.
func (s *ringState) readable(from int64) (at, end int64) {
	at = max(from, s.start)
	for _, gap := range s.gaps[:s.ngaps] {
		if at < gap.from {
			return at, gap.from
		}
		at = max(at, gap.to)
	}
	return at, max(at, s.total)
}

// ringPart is a piece of a run of bytes: [from, to) of it lies in the file at at.
type ringPart struct{ from, to, at int64 }

// parts cuts n bytes at offset where the circle ends. n is at most its size.
func (s *ringState) parts(offset, n int64) []ringPart {
	if n <= 0 {
		return nil
	}
	size := s.window + s.slack
	pos := offset % size
	first := min(n, size-pos)
	parts := []ringPart{{0, first, ringDataAt + pos}}
	if first < n {
		parts = append(parts, ringPart{first, n, ringDataAt})
	}
	return parts
}

func (s *ringState) encode() []byte {
	b := make([]byte, 0, ringSlotSize)
	b = append(b, ringMagic...)
	b = binary.LittleEndian.AppendUint32(b, ringVersion)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint64(b, s.seq)
	for _, v := range []int64{s.window, s.slack, s.start, s.total, int64(s.ngaps)} {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	for _, gap := range s.gaps[:s.ngaps] {
		b = binary.LittleEndian.AppendUint64(b, uint64(gap.from))
		b = binary.LittleEndian.AppendUint64(b, uint64(gap.to))
	}
	b = b[:ringSlotSize]
	binary.LittleEndian.PutUint32(b[12:], ringSum(b))
	return b
}

// ringSum covers a slot except the sum itself.
func ringSum(slot []byte) uint32 {
	return crc32.Update(crc32.Checksum(slot[:12], castagnoli), castagnoli, slot[16:])
}

var errRingForeign = errors.New("not an output ring")

// decodeRingState believes a slot only when every rule of ringState holds.
func decodeRingState(slot []byte) (ringState, error) {
	var s ringState
	if len(slot) != ringSlotSize || string(slot[:8]) != ringMagic {
		return s, errRingForeign
	}
	if v := binary.LittleEndian.Uint32(slot[8:]); v != ringVersion {
		return s, fmt.Errorf("output ring of version %d, this program reads version %d", v, ringVersion)
	}
	if binary.LittleEndian.Uint32(slot[12:]) != ringSum(slot) {
		return s, errors.New("damaged header (checksum)")
	}
	number := func(at int) int64 { return int64(binary.LittleEndian.Uint64(slot[at:])) }
	s.seq = binary.LittleEndian.Uint64(slot[16:])
	s.window, s.slack, s.start, s.total = number(24), number(32), number(40), number(48)
	n := number(56)
	if n < 0 || n > ringMaxGaps {
		return s, errors.New("damaged header (gaps)")
	}
	s.ngaps = int(n)
	last := s.start
	for i := range s.ngaps {
		s.gaps[i] = ringSpan{number(64 + 16*i), number(72 + 16*i)}
		if s.gaps[i].from <= last || s.gaps[i].to <= s.gaps[i].from {
			return s, errors.New("damaged header (gaps)")
		}
		last = s.gaps[i].to
	}
	switch {
	case s.window < 1 || s.window > 1<<30 || s.slack < 1 || s.slack > 1<<30:
		return s, errors.New("damaged header (size)")
	case s.start < 0 || s.total < last || s.total > maxOffset || s.total-s.start > s.window:
		return s, errors.New("damaged header (offsets)")
	}
	return s, nil
}

// readRingState finds the header that counts in a file of size bytes.
func readRingState(file io.ReaderAt, size int64) (ringState, error) {
	var found []ringState
	var errs []error
	for i := range int64(2) {
		slot := make([]byte, ringSlotSize)
		if n, err := file.ReadAt(slot, i*ringSlotSize); err != nil && !errors.Is(err, io.EOF) {
			return ringState{}, err
		} else if n == 0 || slices.Max(slot) == 0 {
			continue // never written
		}
		s, err := decodeRingState(slot)
		if err == nil && s.slotAt() != i*ringSlotSize {
			err = errors.New("damaged header (slot)")
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		found = append(found, s)
	}
	if len(found) == 0 {
		if len(errs) == 0 {
			errs = append(errs, errRingForeign)
		}
		return ringState{}, fmt.Errorf("%w: %w", errRingDamaged, errors.Join(errs...))
	}
	s := slices.MaxFunc(found, func(a, b ringState) int {
		if a.seq < b.seq {
			return -1
		}
		return 1
	})
	for at, end := s.readable(0); at < end; at, end = s.readable(end) {
		for _, part := range s.parts(at, end-at) {
			if need := part.at + part.to - part.from; need > size {
				return ringState{}, fmt.Errorf("%w: file is cut short: %d bytes of at least %d", errRingDamaged, size, need)
			}
		}
	}
	return s, nil
}
