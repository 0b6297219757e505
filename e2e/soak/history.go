package soak

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Sandbox is what an answer said of a sandbox. Words are the API's.
type Sandbox struct {
	ID         string
	Mark       string // of the create that made it; a tag carries it
	State      string
	StopReason string
	Reason     string
	Boot       string
	Created    time.Time
	Expires    time.Time
	Stopped    time.Time // zero until stopped
}

// Execution is what an answer said of an execution.
type Execution struct {
	ID       string
	Sandbox  string
	Seed     string // of its program, from its arguments
	Status   string
	Reason   string
	ExitCode *int
	Signal   string
	OOM      bool
	Bytes    [2]int64 // all that stdout and stderr got
	Output   [2]Tail  // what is kept of them; only if HasOutput
	Created  time.Time
	Finished time.Time // zero until ended

	HasOutput bool
}

// Tail is the kept part of a stream.
type Tail struct {
	Offset int64 // of the first kept byte
	Bytes  []byte
}

func (t Tail) end() int64 { return t.Offset + int64(len(t.Bytes)) }

// Verb is what was asked of the node, or done to it.
type Verb string

// The verbs.
const (
	Create     Verb = "create"
	Get        Verb = "get"
	List       Verb = "list" // those that run
	Delete     Verb = "delete"
	Extend     Verb = "extend"
	Touch      Verb = "touch"
	Start      Verb = "start"
	Look       Verb = "look"       // at an execution and its output
	Executions Verb = "executions" // all of a sandbox
	KillDaemon Verb = "kill daemon"
	KillVMM    Verb = "kill VMM"
)

// Answer says what became of an operation.
type Answer string

// The answers.
const (
	Done    Answer = "done"
	Refused Answer = "refused"
	Lost    Answer = "lost" // the daemon was killed: it may have happened or not
)

// Operation is one line of the history.
type Operation struct {
	Number  int
	Verb    Verb
	Began   time.Time
	Ended   time.Time
	Answer  Answer
	Code    string // of a refusal
	Message string // of a refusal

	Sandbox   string // that was asked for
	Execution string // that was asked for
	Mark      string // of a create
	TTL       time.Duration
	Idle      time.Duration
	Program   Program // of a start
	Step      string  // where a kill struck

	Sandboxes  []Sandbox   // that were answered
	Executions []Execution // that were answered
}

// String is one line for a person.
func (o Operation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "#%d %s..%s %s", o.Number, o.Began.Format("15:04:05.000"), o.Ended.Format("15:04:05.000"), o.Verb)
	for _, word := range []string{o.Sandbox, o.Execution, o.Mark, o.Step} {
		if word != "" {
			b.WriteString(" " + word)
		}
	}
	if o.TTL > 0 {
		fmt.Fprintf(&b, " ttl=%s", o.TTL)
	}
	if o.Idle > 0 {
		fmt.Fprintf(&b, " idle=%s", o.Idle)
	}
	if o.Verb == Start {
		fmt.Fprintf(&b, " %+v", o.Program)
	}
	fmt.Fprintf(&b, ": %s %s %s", o.Answer, o.Code, o.Message)
	if len(o.Sandboxes) == 1 {
		fmt.Fprintf(&b, " %+v", o.Sandboxes[0])
	}
	if len(o.Executions) == 1 {
		e := o.Executions[0]
		fmt.Fprintf(&b, " %s %s %s signal=%q bytes=%v kept=%d@%d,%d@%d finished=%s", e.ID, e.Status, e.Reason, e.Signal, e.Bytes,
			len(e.Output[0].Bytes), e.Output[0].Offset, len(e.Output[1].Bytes), e.Output[1].Offset, e.Finished.Format("15:04:05.000"))
		if e.ExitCode != nil {
			fmt.Fprintf(&b, " code=%d", *e.ExitCode)
		}
	}
	return b.String()
}

// Refusal is an answer that says no.
type Refusal struct{ Code, Message string }

func (r *Refusal) Error() string { return r.Code + ": " + r.Message }

// ErrLost is what a Driver returns for a call whose daemon was killed before it
// answered.
var ErrLost = errors.New("the daemon was killed before it answered")

// History is the recorder. It is safe for concurrent use.
type History struct {
	mu   sync.Mutex
	next int         // guarded by mu; number of the next operation
	all  []Operation // guarded by mu; in the order of their ends
}

// begin notes when an operation is asked for.
func (h *History) begin(o Operation) Operation {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next++
	o.Number, o.Began = h.next, time.Now()
	return o
}

// end notes what became of it.
func (h *History) end(o Operation, err error) Operation {
	o.Ended = time.Now()
	var refusal *Refusal
	switch {
	case err == nil:
		o.Answer = Done
	case errors.Is(err, ErrLost):
		o.Answer = Lost
	case errors.As(err, &refusal):
		o.Answer, o.Code, o.Message = Refused, refusal.Code, refusal.Message
	default:
		o.Answer, o.Code, o.Message = Refused, "no_answer", err.Error()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, o)
	return o
}

// Operations returns all that have ended.
func (h *History) Operations() []Operation {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Operation(nil), h.all...)
}

// Tell counts operations by verb and answer, and kills by where they struck.
func Tell(history []Operation) []string {
	asked, struck := map[string]int{}, map[string]int{}
	for _, o := range history {
		asked[strings.TrimSpace(string(o.Verb)+" "+string(o.Answer)+" "+o.Code)]++
		if o.Verb == KillDaemon {
			struck["killed: "+o.Step]++
		}
	}
	var lines []string
	for _, counts := range []map[string]int{asked, struck} {
		var some []string
		for what, n := range counts {
			some = append(some, fmt.Sprint(n, " ", what))
		}
		slices.Sort(some)
		lines = append(lines, strings.Join(some, "; "))
	}
	return lines
}
