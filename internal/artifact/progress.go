package artifact

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// State says what an Event is.
type State string

// The states of an Event.
const (
	Working State = "working" // Text says what is being waited for
	Done    State = "done"    // Text says what came from where
	Failed  State = "failed"  // Text is the error
)

// Event is one piece of news about one artifact.
type Event struct {
	Artifact string
	State    State
	Text     string        // one line
	Took     time.Duration // Done and Failed only
}

func (s *Store) reporter(name string) func(string) {
	return func(text string) {
		s.options.Progress(Event{Artifact: name, State: Working, Text: oneLine(text)})
	}
}

// maxLine bounds a line of progress, in bytes: a build may print anything.
const maxLine = 200

func oneLine(text string) string {
	text = strings.ToValidUTF8(strings.TrimSpace(text), "?")
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
	if len(text) > maxLine {
		text = strings.ToValidUTF8(text[:maxLine], "") + "..."
	}
	return text
}

// How often a Printer speaks about one artifact that is being worked on.
const (
	quiet  = 2 * time.Second  // nothing is said about what is quicker than this
	repeat = 10 * time.Second // the same text is said again after this
)

// Printer writes progress for people: nothing about what takes under two
// seconds, then at most one line per artifact every two seconds, saying what
// it waits for, and one last line with seconds. Close it to stop its
// goroutine.
type Printer struct {
	out  io.Writer
	stop chan struct{}
	done chan struct{}

	mu     sync.Mutex
	active map[string]*activity // guarded by mu
}

type activity struct {
	since  time.Time
	text   string
	said   string
	saidAt time.Time
}

// NewPrinter starts a Printer that writes to out, which only it may write to
// until Close has returned.
func NewPrinter(out io.Writer) *Printer {
	p := &Printer{out: out, stop: make(chan struct{}), done: make(chan struct{}), active: map[string]*activity{}}
	go p.run()
	return p
}

// Close stops the printer and waits for it.
func (p *Printer) Close() {
	close(p.stop)
	<-p.done
}

// Progress takes an event; it is what Options.Progress wants.
func (p *Printer) Progress(event Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	switch event.State {
	case Working:
		a, ok := p.active[event.Artifact]
		if !ok {
			a = &activity{since: now, saidAt: now}
			p.active[event.Artifact] = a
		}
		a.text = event.Text
	default:
		delete(p.active, event.Artifact)
		mark := "ready"
		if event.State == Failed {
			mark = "FAILED"
		}
		fmt.Fprintf(p.out, "%-14s %s: %s (%.1f s)\n", event.Artifact, mark, event.Text, event.Took.Seconds())
	}
}

func (p *Printer) run() {
	defer close(p.done)
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-p.stop:
			return
		case now := <-ticker.C:
			p.speak(now)
		}
	}
}

func (p *Printer) speak(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := make([]string, 0, len(p.active))
	for name := range p.active {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		a := p.active[name]
		wait := quiet
		if a.text == a.said {
			wait = repeat
		}
		if now.Sub(a.saidAt) < wait {
			continue
		}
		a.said, a.saidAt = a.text, now
		fmt.Fprintf(p.out, "%-14s %3.0f s: %s\n", name, now.Sub(a.since).Seconds(), a.text)
	}
}
