package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/term"
)

// maxSize is the largest number of rows and columns that the API takes.
const maxSize = 1000

// terminal is the terminal that this process runs on. It is given back as it was
// on every way out: the end, an error, a signal, a panic.
type terminal struct {
	in  *os.File  // where keys come from
	out io.Writer // where the program's output goes
	err io.Writer // where this process says something
	fd  int

	mu  sync.Mutex
	was *term.State // guarded by mu: what to give back; nil while it is not raw
}

// openTerminal wants standard input to be a terminal.
func openTerminal(in io.Reader, out, err io.Writer) (*terminal, error) {
	file, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return nil, hint(errors.New("-t wants a terminal, and standard input is none"), "leave out -t to pass a file or a pipe to the program with -i")
	}
	return &terminal{in: file, out: out, err: err, fd: int(file.Fd())}, nil
}

// size is the terminal's size, within what the API takes, where it has one.
func (t *terminal) size() (rows, cols int, ok bool) {
	cols, rows, err := term.GetSize(t.fd)
	if err != nil || rows < 1 || cols < 1 {
		return 0, 0, false
	}
	return min(rows, maxSize), min(cols, maxSize), true
}

// initialSize is the size for the API; the node has a default for none.
func (t *terminal) initialSize() (rows, cols *int) {
	r, c, ok := t.size()
	if !ok {
		return nil, nil
	}
	return &r, &c
}

// raw hands all keys to whoever reads, until restore. SIGQUIT, which would end
// this process at once, restores first.
func (t *terminal) raw() (restore func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.was, err = term.MakeRaw(t.fd); err != nil {
		return nil, fmt.Errorf("make terminal raw: %w", err)
	}
	quit := make(chan os.Signal, 1)
	signal.Notify(quit, syscall.SIGQUIT)
	done := make(chan struct{})
	go func() {
		select {
		case <-quit:
			t.restore()
			signal.Reset(syscall.SIGQUIT)
			_ = syscall.Kill(syscall.Getpid(), syscall.SIGQUIT)
		case <-done:
		}
	}()
	return sync.OnceFunc(func() {
		signal.Stop(quit)
		close(done)
		t.restore()
	}), nil
}

// restore may be called at any time, and again.
func (t *terminal) restore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.was != nil {
		_ = term.Restore(t.fd, t.was) // a terminal that is gone needs nothing
		t.was = nil
	}
}

// guard is deferred in every goroutine that runs while the terminal is raw: a
// panic ends the process without the deferred calls of the others.
func (t *terminal) guard() {
	if p := recover(); p != nil {
		t.restore()
		panic(p)
	}
}

// note says something amid the program's output.
func (t *terminal) note(format string, args ...any) {
	say(t.err, "\r\n["+format+"]\r\n", args...)
}

// resized tells of each change of size, until stop.
func (t *terminal) resized() (changes <-chan os.Signal, stop func()) {
	signals := make(chan os.Signal, 1) // one that waits stands for all
	signal.Notify(signals, syscall.SIGWINCH)
	return signals, func() { signal.Stop(signals) }
}
