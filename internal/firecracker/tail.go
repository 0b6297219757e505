package firecracker

import (
	"errors"
	"io"
	"sync"
	"time"
)

const (
	tailKeep = 16 << 10 // bytes that are kept of what a VMM prints
	tailRate = 64 << 10 // bytes that are read before a rest
	tailRest = time.Second
)

// tail keeps the last bytes of an endless stream that hostile code may fill. It
// reads at most tailRate bytes a second, so a flood costs next to nothing: the
// writer's pipe fills up, and Firecracker drops what does not fit.
type tail struct {
	source  io.ReadCloser
	pending func() int    // bytes that wait in source; nil if that cannot be told
	closed  chan struct{} // tells the reader to stop
	done    chan struct{} // closed when the reader stopped

	once sync.Once
	mu   sync.Mutex
	kept []byte // guarded by mu; at most tailKeep
	lost int64  // guarded by mu; bytes that were read and are kept no more
}

// follow starts to read source; close ends it.
func follow(source io.ReadCloser, pending func() int) *tail {
	t := &tail{source: source, pending: pending, closed: make(chan struct{}), done: make(chan struct{})}
	go t.read()
	return t
}

func (t *tail) read() {
	defer close(t.done)
	buf := make([]byte, 4<<10)
	taken := 0
	for {
		n, err := t.source.Read(buf)
		t.keep(buf[:n])
		if err != nil {
			return
		}
		if taken += n; taken < tailRate {
			continue
		}
		taken = 0
		rest := time.NewTimer(tailRest)
		select {
		case <-t.closed:
			rest.Stop()
			return
		case <-rest.C:
		}
	}
}

func (t *tail) keep(data []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, data...)
	if over := len(t.kept) - tailKeep; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
		t.lost += int64(over)
	}
}

// last returns up to limit of the newest bytes, and how many came before them.
// They are the words of hostile code: to be quoted, never to be believed.
func (t *tail) last(limit int) (text string, before int64) {
	if t == nil {
		return "", 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	cut := max(0, len(t.kept)-limit)
	return string(t.kept[cut:]), t.lost + int64(cut)
}

const (
	settleEvery = time.Millisecond
	settleTries = 50
	settleQuiet = 5 // looks in a row that find nothing: what was read is kept a moment after it is no longer pending
)

// settle gives the reader a moment to take what was already written.
func (t *tail) settle() {
	if t == nil || t.pending == nil {
		return
	}
	quiet := 0
	for range settleTries {
		if quiet++; t.pending() > 0 {
			quiet = 0
		}
		if quiet == settleQuiet {
			return
		}
		time.Sleep(settleEvery)
	}
}

// close stops the reader and waits for it. It may be called again, and on nil.
func (t *tail) close() {
	if t == nil {
		return
	}
	t.once.Do(func() { close(t.closed) })
	_ = t.source.Close()
	<-t.done
}

var errTooLong = errors.New("line is too long")

// readLine reads up to and without the next '\n', one byte at a time: what
// follows it belongs to somebody else.
func readLine(r io.Reader, limit int) (string, error) {
	line := make([]byte, 0, 64)
	var b [1]byte
	for {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return "", err
		}
		if b[0] == '\n' {
			return string(line), nil
		}
		if len(line) == limit {
			return "", errTooLong
		}
		line = append(line, b[0])
	}
}
