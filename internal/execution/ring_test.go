package execution

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// streamByte is what the program wrote at an offset, in every test: a byte that
// is read from a wrong place differs.
func streamByte(offset int64) byte {
	x := uint64(offset) * 0x9e3779b97f4a7c15
	return byte(x >> 56)
}

func streamBytes(from, to int64) []byte {
	p := make([]byte, to-from)
	for i := range p {
		p[i] = streamByte(from + int64(i))
	}
	return p
}

// readAll follows a ring from its beginning to its end and returns the offsets
// that it could read. Every byte must be the one that was written there.
func readAll(r *Ring, limit int) (got []ringSpan, err error) {
	for from := int64(0); ; {
		p, at, err := r.ReadAt(from, limit)
		if err != nil {
			return nil, err
		}
		if at < from || len(p) > limit {
			return nil, fmt.Errorf("read from %d returned %d bytes at %d", from, len(p), at)
		}
		if len(p) == 0 {
			return got, nil
		}
		from = at + int64(len(p))
		if !bytes.Equal(p, streamBytes(at, from)) {
			return nil, fmt.Errorf("bytes at %d..%d are not what was written there", at, from)
		}
		if n := len(got); n > 0 && got[n-1].to == at {
			got[n-1].to = from
		} else {
			got = append(got, ringSpan{at, from})
		}
	}
}

// ringModel is a ring as a list of what was kept, without a file.
type ringModel struct {
	window int64
	total  int64
	kept   []ringSpan
}

func (m *ringModel) append(offset, n int64) {
	end := max(m.total, offset+n)
	from := max(offset, m.total)
	if from < offset+n {
		m.kept = append(m.kept, ringSpan{from, offset + n})
	}
	m.total = end
	var kept []ringSpan
	for _, span := range m.kept {
		span.from = max(span.from, m.total-m.window)
		if span.from >= span.to {
			continue
		}
		if k := len(kept); k > 0 && kept[k-1].to == span.from {
			kept[k-1].to = span.to
			continue
		}
		kept = append(kept, span)
	}
	if gaps := len(kept) - 1; gaps >= 0 {
		if m.total > kept[gaps].to {
			gaps++
		}
		if gaps > ringMaxGaps {
			kept = kept[gaps-ringMaxGaps:]
		}
	}
	m.kept = kept
}

func (m *ringModel) start() int64 {
	if len(m.kept) == 0 {
		return m.total
	}
	return m.kept[0].from
}

func (m *ringModel) check(r *Ring, limit int) error {
	got, err := readAll(r, limit)
	if err != nil {
		return err
	}
	if fmt.Sprint(got) != fmt.Sprint(m.kept) {
		return fmt.Errorf("ring has %v, model has %v", got, m.kept)
	}
	if r.Total() != m.total || r.Start() != m.start() {
		return fmt.Errorf("ring %d..%d, model %d..%d", r.Start(), r.Total(), m.start(), m.total)
	}
	return nil
}

// drawAppend draws an offset and a length around total: the next bytes, a
// repeat, an overlap or a gap.
func drawAppend(t *rapid.T, total, size int64) (offset, n int64) {
	n = rapid.Int64Range(0, 2*size).Draw(t, "n")
	switch rapid.SampledFrom([]string{"next", "next", "next", "repeat", "gap"}).Draw(t, "kind") {
	case "repeat":
		return max(0, total-rapid.Int64Range(0, 2*size).Draw(t, "back")), n
	case "gap":
		return total + rapid.Int64Range(0, 3*size).Draw(t, "skip"), n
	}
	return total, n
}

func TestRingAgainstModel(t *testing.T) {
	dir := t.TempDir()
	var count int
	check := func(t *rapid.T) {
		count++
		window := rapid.Int64Range(1, 300).Draw(t, "window")
		slack := rapid.Int64Range(1, 64).Draw(t, "slack")
		path := filepath.Join(dir, fmt.Sprint("ring", count))
		r, err := createRing(path, window, slack)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Close() }()
		defer func() { _ = os.Remove(path) }()
		model := ringModel{window: window}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			offset, n := drawAppend(t, model.total, window/4+1)
			if err := r.Append(offset, streamBytes(offset, offset+n)); err != nil {
				t.Fatal(err)
			}
			model.append(offset, n)
			if rapid.IntRange(0, 8).Draw(t, "drop") == 0 {
				if err := r.Drop(); err != nil {
					t.Fatal(err)
				}
				model.kept = nil
			}
			if rapid.IntRange(0, 5).Draw(t, "reopen") == 0 {
				if err := r.Close(); err != nil {
					t.Fatal(err)
				}
				if r, err = OpenRing(path); err != nil {
					t.Fatal(err)
				}
			}
			if err := model.check(r, rapid.IntRange(1, 400).Draw(t, "limit")); err != nil {
				t.Fatal(err)
			}
		}
		if info, err := os.Stat(path); err != nil || info.Size() > ringDataAt+window+slack {
			t.Fatalf("file of %d bytes, %v", info.Size(), err)
		}
	}
	for range 3 { // rapid runs 100 cases each time
		rapid.Check(t, check)
	}
	t.Logf("%d cases", count)
}

var errKilled = errors.New("killed")

// dyingFile is a file in memory whose writer is killed after budget bytes: the
// write that crosses it is torn there, and none comes after.
type dyingFile struct {
	data   []byte
	budget int // -1 is no end
}

func (f *dyingFile) ReadAt(p []byte, at int64) (int, error) {
	return bytes.NewReader(f.data).ReadAt(p, at)
}

func (f *dyingFile) WriteAt(p []byte, at int64) (int, error) {
	n := len(p)
	if f.budget >= 0 {
		n = min(n, f.budget)
		f.budget -= n
	}
	if short := int(at) + n - len(f.data); short > 0 {
		f.data = append(f.data, make([]byte, short)...)
	}
	copy(f.data[at:], p[:n])
	if n < len(p) {
		return n, errKilled
	}
	return n, nil
}

func (f *dyingFile) Punch(from, to int64) error {
	if f.budget == 0 {
		return errKilled
	}
	if from < int64(len(f.data)) {
		clear(f.data[from:min(to, int64(len(f.data)))])
	}
	return nil
}

func (f *dyingFile) Close() error { return nil }

// TestRingSurvivesAKillAtEveryByte kills the writer at a random byte of data or
// header, reopens what is in the file, and goes on as the agent does: it sends
// again from what was acknowledged.
func TestRingSurvivesAKillAtEveryByte(t *testing.T) {
	var cases, kills, fellBack int
	check := func(t *rapid.T) {
		cases++
		window := rapid.Int64Range(1, 200).Draw(t, "window")
		slack := rapid.Int64Range(1, 64).Draw(t, "slack")
		file := &dyingFile{budget: -1}
		state := ringState{window: window, slack: slack, seq: 1}
		_, _ = file.WriteAt(state.encode(), state.slotAt())
		r := &Ring{file: file, state: state}
		model := ringModel{window: window}
		torn := false // a drop's header was, and no other has been written since
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			offset, n := drawAppend(t, model.total, window/3+1)
			file.budget = rapid.IntRange(-1, int(n)+2*ringSlotSize).Draw(t, "budget")
			if rapid.IntRange(0, 8).Draw(t, "drop") == 0 {
				if r.Drop() == nil || r.Start() == r.Total() { // its header was written
					model.kept = nil
				} else {
					torn = true
				}
			}
			err := r.Append(offset, streamBytes(offset, offset+n))
			file.budget = -1
			if err == nil {
				model.append(offset, n)
				if err := model.check(r, 100); err != nil {
					t.Fatal(err)
				}
				continue
			}
			if !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			kills++
			// The live ring still says the truth: a full disk is no crash.
			if _, err := readAll(r, 100); err != nil {
				t.Fatalf("after a failed append: %v", err)
			}
			after, err := readRingState(file, int64(len(file.data)))
			if err != nil {
				t.Fatalf("reopen after a kill: %v", err)
			}
			if after.seq < r.state.seq {
				t.Fatalf("reopened header %d, header %d was written", after.seq, r.state.seq)
			}
			if after.total == model.total {
				fellBack++
			}
			if rapid.Bool().Draw(t, "restart") {
				r = &Ring{file: file, state: after}
				if torn && r.Start() >= model.total { // all that the drop changed was written after all
					model.kept = nil
				}
			}
			if r.Total() < model.total || r.Total() > max(model.total, offset+n) {
				t.Fatalf("total %d after a kill, %d acknowledged", r.Total(), model.total)
			}
			if _, err := readAll(r, 100); err != nil {
				t.Fatalf("after a kill: %v", err)
			}
			// The agent sends again what was not acknowledged.
			if err := r.Append(offset, streamBytes(offset, offset+n)); err != nil {
				t.Fatal(err)
			}
			model.append(offset, n)
			if err := model.check(r, 100); err != nil {
				t.Fatalf("after the repeat: %v", err)
			}
		}
	}
	for range 5 {
		rapid.Check(t, check)
	}
	if kills < 200 || fellBack < 50 {
		t.Fatalf("%d kills, %d that lost the append: too few to say anything", kills, fellBack)
	}
	t.Logf("%d cases, %d kills", cases, kills)
}

// TestADroppedRingGivesItsDiskBack: what fell is declared, what comes is kept,
// and the blocks are the file system's again.
func TestADroppedRingGivesItsDiskBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ring")
	r, err := CreateRing(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if err := r.Append(0, streamBytes(0, RingBytes)); err != nil {
		t.Fatal(err)
	}
	blocks := func() int64 {
		var stat unix.Stat_t
		if err := unix.Stat(path, &stat); err != nil {
			t.Fatal(err)
		}
		return stat.Blocks * 512
	}
	if before := blocks(); before < RingBytes || r.Size() < RingBytes {
		t.Fatalf("%d bytes on the disk, told %d", before, r.Size())
	}
	if err := r.Drop(); err != nil {
		t.Fatal(err)
	}
	if after := blocks(); after > 64<<10 || r.Size() > 64<<10 {
		t.Fatalf("%d bytes on the disk, told %d", after, r.Size())
	}
	if err := r.Append(RingBytes, streamBytes(RingBytes, RingBytes+5)); err != nil {
		t.Fatal(err)
	}
	p, at, err := r.ReadAt(0, 100)
	if err != nil || at != RingBytes || !bytes.Equal(p, streamBytes(RingBytes, RingBytes+5)) {
		t.Fatalf("%q at %d, %v", p, at, err)
	}
}

func TestRingRefusesWhatItDidNotWrite(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	r, err := createRing(good, 100, 20)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Append(0, streamBytes(0, 90)); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func([]byte) []byte
		want   string
	}{
		"empty":     {func([]byte) []byte { return nil }, "not an output ring"},
		"zeros":     {func(b []byte) []byte { return make([]byte, len(b)) }, "not an output ring"},
		"foreign":   {func([]byte) []byte { return bytes.Repeat([]byte("log line\n"), 1000) }, "not an output ring"},
		"cut":       {func(b []byte) []byte { return b[:ringDataAt+89] }, "cut short"},
		"no data":   {func(b []byte) []byte { return b[:2*ringSlotSize] }, "cut short"},
		"torn":      {func(b []byte) []byte { return b[:40] }, "checksum"},
		"both bits": {func(b []byte) []byte { b[45] ^= 1; b[ringSlotSize+45] ^= 1; return b }, "checksum"},
		"swapped": {func(b []byte) []byte {
			return append(append(bytes.Clone(b[ringSlotSize:2*ringSlotSize]), b[:ringSlotSize]...), b[2*ringSlotSize:]...)
		}, "slot"},
		"version": {func(b []byte) []byte { b[8], b[ringSlotSize+8] = 9, 9; return b }, "version 9"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ring")
			if err := os.WriteFile(path, c.change(bytes.Clone(whole)), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := OpenRing(path)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Fatalf("got %v, want %q and the path", err, c.want)
			}
		})
	}
	if _, err := OpenRing(dir); err == nil {
		t.Fatal("a directory was opened as a ring")
	}
	if _, err := OpenRing(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("missing ring: %v", err)
	}
	if _, err := CreateRing(good); !errors.Is(err, os.ErrExist) {
		t.Fatalf("second create: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.new")); len(left) > 0 {
		t.Fatalf("left behind: %v", left)
	}
}

func TestRingDecoderTakesAnyBytes(t *testing.T) {
	var zero ringState
	rapid.Check(t, func(t *rapid.T) {
		slot := make([]byte, ringSlotSize)
		copy(slot, zero.encode()[:16])
		copy(slot[16:], rapid.SliceOfN(rapid.Byte(), 0, ringSlotSize-16).Draw(t, "rest"))
		for i := range 4 { // small numbers pass more of the checks
			if rapid.Bool().Draw(t, "small") {
				copy(slot[24+8*i:], []byte{byte(rapid.IntRange(0, 255).Draw(t, "v")), 0, 0, 0, 0, 0, 0, 0})
			}
		}
		sum := ringSum(slot)
		slot[12], slot[13], slot[14], slot[15] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
		s, err := decodeRingState(slot)
		if err != nil {
			return
		}
		if at, end := s.readable(0); at < s.start || end < at || end-at > s.window {
			t.Fatalf("believed %+v", s)
		}
	})
}

func TestRingRefusesBadOffsets(t *testing.T) {
	r, err := CreateRing(filepath.Join(t.TempDir(), "ring"))
	if err != nil {
		t.Fatal(err)
	}
	for _, offset := range []int64{-1, maxOffset, maxOffset + 1, 1<<63 - 1} {
		if err := r.Append(offset, []byte("x")); err == nil {
			t.Errorf("offset %d was taken", offset)
		}
	}
	if err := r.Append(maxOffset-1, []byte{streamByte(maxOffset - 1)}); err != nil {
		t.Fatal(err)
	}
	if got, err := readAll(r, 10); err != nil || len(got) != 1 || r.Start() != maxOffset-1 {
		t.Fatalf("%v %v, start %d", got, err, r.Start())
	}
	for _, from := range []int64{-1, -1 << 62} {
		if _, _, err := r.ReadAt(from, 1); err == nil {
			t.Errorf("read from %d", from)
		}
	}
	if _, _, err := r.ReadAt(0, 0); err == nil {
		t.Error("read of no bytes")
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal("second close", err)
	}
	if err := r.Append(maxOffset, nil); !errors.Is(err, os.ErrClosed) {
		t.Fatal(err)
	}
	if _, _, err := r.ReadAt(0, 1); !errors.Is(err, os.ErrClosed) {
		t.Fatal(err)
	}
	<-r.Changed() // closed for good
}

// TestRingReadersFollow has readers of different pace follow one writer through
// several times the window. Each must see every byte once or a declared jump.
func TestRingReadersFollow(t *testing.T) {
	const total = 8 << 20
	r, err := CreateRing(filepath.Join(t.TempDir(), "ring"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	errs := make(chan error, 10)
	var wait sync.WaitGroup
	for i := range cap(errs) {
		wait.Go(func() {
			limit := 1 << (8 + i)
			for from := int64(0); from < total; {
				changed := r.Changed()
				p, at, err := r.ReadAt(from, limit)
				if err == nil && !bytes.Equal(p, streamBytes(at, at+int64(len(p)))) {
					err = fmt.Errorf("wrong bytes at %d", at)
				}
				if err != nil {
					errs <- err
					return
				}
				if from = at + int64(len(p)); len(p) > 0 {
					continue
				}
				select {
				case <-changed:
				case <-ctx.Done():
					errs <- fmt.Errorf("reader %d stopped at %d", i, from)
					return
				}
			}
		})
	}
	for offset := int64(0); offset < total; {
		n := min(total-offset, 1000+offset%90_001)
		if err := r.Append(offset, streamBytes(offset, offset+n)); err != nil {
			t.Error(err)
			cancel()
			break
		}
		offset += n
	}
	wait.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	if r.Start() != total-RingBytes {
		t.Errorf("start %d", r.Start())
	}
}

func TestRingMemoryIsFlat(t *testing.T) {
	r, err := CreateRing(filepath.Join(t.TempDir(), "ring"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	frame := make([]byte, 32<<10)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const frames = 2000
	for i := range int64(frames) {
		if err := r.Append(i*int64(len(frame)), frame); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if per := (after.TotalAlloc - before.TotalAlloc) / frames; per > 4096 {
		t.Fatalf("%d bytes allocated for each frame", per)
	}
}

func BenchmarkRingAppend(b *testing.B) {
	r, err := CreateRing(filepath.Join(b.TempDir(), "ring"))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	frame := make([]byte, 32<<10)
	b.SetBytes(int64(len(frame)))
	for i := int64(0); b.Loop(); i++ {
		if err := r.Append(i*int64(len(frame)), frame); err != nil {
			b.Fatal(err)
		}
	}
}
