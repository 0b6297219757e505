package machine

import (
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	progressAfter = 2 * time.Second
	progressEvery = 10 * time.Second
)

// progress prints what a step does when it lasts over two seconds, again every ten, and how long it took. Steps may run side
// by side.
type progress struct {
	mu sync.Mutex
	w  io.Writer // guarded by mu
}

func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, format+"\n", args...)
}

// step runs f; what says what is being done or waited for.
func (p *progress) step(what string, f func() error) error {
	began := time.Now()
	done, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		wait := progressAfter
		for {
			select {
			case <-done:
				return
			case <-time.After(wait):
				p.say("%s ... %.0f s", what, time.Since(began).Seconds())
				wait = progressEvery
			}
		}
	}()
	err := f()
	close(done)
	<-gone
	if took := time.Since(began); took > progressAfter && err == nil {
		p.say("%s: done in %.1f s", what, took.Seconds())
	}
	return err
}
