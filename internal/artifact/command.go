package artifact

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Bounds on what a child program may print.
const (
	tailLines    = 15      // of its output are put into the error
	maxLogBytes  = 8 << 20 // of its output are kept in the log file
	killWait     = 5 * time.Second
	maxLineBytes = 64 << 10
)

// command is one child program with its output made into progress.
type command struct {
	args   []string
	dir    string
	env    []string  // added to our own
	log    io.Writer // gets all output, or nil
	report func(string)
}

// run starts the program in a process group of its own, reports each line of
// its standard error, and kills the whole group when ctx ends. The error of a
// program that failed holds the last lines that it printed.
func (c command) run(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), c.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = killWait // a grandchild may hold the pipe after the kill
	out := &lines{log: c.log}
	errs := &lines{log: c.log, report: c.report}
	shared := &sync.Mutex{}
	out.mu, errs.mu = shared, shared
	cmd.Stdout, cmd.Stderr = out, errs
	err := cmd.Run()
	errs.flush()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("run %s: %w", c.args[0], context.Cause(ctx))
	}
	if len(errs.last) > 0 {
		return fmt.Errorf("run %s: %w; it ended with:\n  %s", strings.Join(c.args, " "), err, strings.Join(errs.last, "\n  "))
	}
	return fmt.Errorf("run %s: %w", strings.Join(c.args, " "), err)
}

// lines splits output into lines of bounded length.
type lines struct {
	mu     *sync.Mutex // shared by the two streams of one program
	log    io.Writer
	report func(string)
	rest   []byte   // guarded by mu
	last   []string // guarded by mu
}

func (l *lines) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.log != nil {
		_, _ = l.log.Write(text) // a full log must not stop the program
	}
	if l.report == nil {
		return len(text), nil
	}
	l.rest = append(l.rest, text...)
	for {
		advance, token, _ := bufio.ScanLines(l.rest, false)
		if advance == 0 && len(l.rest) > maxLineBytes {
			advance, token = len(l.rest), l.rest
		}
		if advance == 0 {
			return len(text), nil
		}
		l.line(string(token))
		l.rest = append(l.rest[:0], l.rest[advance:]...)
	}
}

func (l *lines) line(text string) {
	if text = oneLine(text); text == "" {
		return
	}
	l.report(text)
	if l.last = append(l.last, text); len(l.last) > tailLines {
		l.last = l.last[1:]
	}
}

func (l *lines) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.report != nil && len(l.rest) > 0 {
		l.line(string(l.rest))
		l.rest = nil
	}
}

// logFile keeps the first maxLogBytes of what is written to it.
type logFile struct {
	file *os.File
	left int64
}

func (l *logFile) Write(text []byte) (int, error) {
	if int64(len(text)) > l.left {
		return 0, errors.New("write log: full")
	}
	l.left -= int64(len(text))
	return l.file.Write(text)
}
