package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	// quietTime is how long a step may take before somebody is told about it.
	quietTime = 2 * time.Second
	// plainEvery is how often a step is told about where lines cannot be rewritten.
	plainEvery = 10 * time.Second
)

// progress says what is waited for, on standard error.
type progress struct {
	out      io.Writer
	show     bool // to a terminal, or asked for
	terminal bool // the line can be rewritten
}

func newProgress(stderr io.Writer, verbose bool) *progress {
	terminal := onTerminal(stderr)
	return &progress{out: stderr, show: terminal || verbose, terminal: terminal}
}

// wait says, from two seconds on, that what is waited for, until done is called.
func (p *progress) wait(what string) (done func()) {
	return p.follow(func(after time.Duration) string {
		return fmt.Sprintf("waiting for %s (%d s)", what, int(after.Seconds()))
	})
}

// follow says, from two seconds on, how far something is, until done is called.
func (p *progress) follow(line func(after time.Duration) string) (done func()) {
	if !p.show {
		return func() {}
	}
	stop := make(chan struct{})
	var told sync.WaitGroup
	began := time.Now()
	told.Go(func() {
		timer := time.NewTimer(quietTime)
		defer timer.Stop()
		for shown := false; ; {
			select {
			case <-stop:
				if shown && p.terminal {
					say(p.out, "\r\x1b[K")
				}
				return
			case <-timer.C:
			}
			text := line(time.Since(began))
			if p.terminal {
				say(p.out, "\r%s\x1b[K", text)
				timer.Reset(time.Second)
			} else {
				say(p.out, "%s\n", text)
				timer.Reset(plainEvery)
			}
			shown = true
		}
	})
	return sync.OnceFunc(func() {
		close(stop)
		told.Wait()
	})
}

// note says one line at once where progress is shown.
func (p *progress) note(format string, args ...any) {
	if p.show {
		say(p.out, format+"\n", args...)
	}
}
