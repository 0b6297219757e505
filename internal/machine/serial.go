package machine

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
)

// consoleLimit bounds each of a console log's two files, in bytes: whatever the host or a guest prints, the outer disk
// loses no more than twice this.
const consoleLimit = 1 << 20

// boundedLog writes a file and, when it is full, moves it to ".1" over the one before. It never fails its writer: a console
// that cannot be written is no reason to stop a machine.
type boundedLog struct {
	path  string
	limit int
	mu    sync.Mutex
	f     *os.File // guarded by mu
	size  int      // guarded by mu
	tail  []byte   // guarded by mu; the last bytes, for panicLines
}

// newBoundedLog starts an empty log; what an earlier run left becomes ".1".
func newBoundedLog(path string, limit int) (*boundedLog, error) {
	l := &boundedLog{path: path, limit: limit}
	return l, l.rotate()
}

func (l *boundedLog) rotate() error {
	if l.f != nil {
		l.f.Close()
	}
	if err := os.Rename(l.path, l.path+".1"); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("rotate log: %w", err)
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	l.f, l.size = f, 0
	return nil
}

const tailLimit = 64 << 10

func (l *boundedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tail = append(l.tail, p...)
	if len(l.tail) > 2*tailLimit {
		l.tail = append([]byte(nil), l.tail[len(l.tail)-tailLimit:]...)
	}
	for rest := p; len(rest) > 0; {
		if l.size >= l.limit && l.rotate() != nil {
			break
		}
		n := min(len(rest), l.limit-l.size)
		if _, err := l.f.Write(rest[:n]); err != nil {
			break
		}
		l.size += n
		rest = rest[n:]
	}
	return len(p), nil
}

func (l *boundedLog) recent() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.tail)
}

// What begins a report that leads to a panic, and the panic itself (kernel/panic.c, arch/x86/mm/fault.c).
var oopsMarks = []string{"BUG: ", "Oops", "general protection fault", "invalid opcode", "double fault", "stack guard page", "Kernel stack overflow"}

const (
	panicMark  = "Kernel panic - not syncing"
	panicLimit = 60 // lines
)

// panicLines is the kernel panic in a console's text, from the report that led to it, and nil when there is none.
func panicLines(console []byte) []string {
	lines := strings.Split(strings.ReplaceAll(string(console), "\r", ""), "\n")
	at := -1
	for i, l := range lines {
		if strings.Contains(l, panicMark) {
			at = i
			break
		}
	}
	if at < 0 {
		return nil
	}
	from := at
	for i := at - 1; i >= max(0, at-panicLimit); i-- {
		for _, m := range oopsMarks {
			if strings.Contains(lines[i], m) {
				from = i
			}
		}
	}
	to := at + 1
	for to < len(lines) && to-from < panicLimit && !strings.Contains(lines[to-1], "end "+panicMark) {
		to++
	}
	out := lines[from:to]
	for len(out) > 0 && strings.TrimSpace(out[len(out)-1]) == "" {
		out = out[:len(out)-1]
	}
	return out
}
