package soak

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Node is what the checker must know of a node.
type Node struct {
	Slots int // sandboxes at once; nothing else makes it full
	// Grace is how late what was decided may show: a timer, a removed microVM, a
	// stored ending.
	Grace time.Duration
	// Loud is from how many bytes of a stream on its front may be gone.
	Loud int64
}

// Times are stored in whole milliseconds, cut off.
const tick = 2 * time.Millisecond

// clockSlack is how far the shown end of a TTL may move without an extend: it
// follows the wall clock (internal/sandbox).
const clockSlack = 2 * time.Second

// Check replays a history and returns each answer that another one proves
// wrong, with both.
func Check(history []Operation, node Node) []string {
	c := &checker{node: node, history: slices.Clone(history), boxes: map[string]*box{}, programs: map[string]*program{}, creates: map[string]*Operation{}}
	slices.SortFunc(c.history, func(a, b Operation) int { return a.Began.Compare(b.Began) })
	c.collect()
	c.checkRefusals()
	c.checkMarks()
	c.checkCapacity()
	for _, b := range c.boxes {
		c.checkBox(b)
	}
	for _, p := range c.programs {
		c.checkProgram(p)
	}
	slices.Sort(c.wrong)
	return slices.Compact(c.wrong)
}

type checker struct {
	node     Node
	history  []Operation // by their beginnings
	boxes    map[string]*box
	programs map[string]*program
	creates  map[string]*Operation // by mark
	wrong    []string
}

// box is all that was said of one sandbox, and all that was done to it.
type box struct {
	id   string
	seen []seen
	done []*Operation // about it or a list with it, by their beginnings
	ran  []*program   // in it
}

// seen is what one answer said.
type seen struct {
	by *Operation
	Sandbox
}

// program is all that was said of one execution.
type program struct {
	id, sandbox string
	Program
	asked *Operation // the start that was, or may have been, its own; nil when none is known
	seen  []ran
	me    who // what its lines say
}

type ran struct {
	by *Operation
	Execution
}

// report says what is wrong, and by which operations.
func (c *checker) report(what string, by ...*Operation) {
	lines := []string{what}
	for _, o := range by {
		lines = append(lines, "    "+o.String())
	}
	c.wrong = append(c.wrong, strings.Join(lines, "\n"))
}

// collect sorts answers by what they are about.
func (c *checker) collect() {
	starts := map[string]*Operation{} // by seed
	for i := range c.history {
		o := &c.history[i]
		switch o.Verb {
		case Start:
			starts[o.Program.Seed] = o
		case Create:
			c.creates[o.Mark] = o
		default:
		}
		about := map[string]bool{}
		for _, sb := range o.Sandboxes {
			b := c.box(sb.ID)
			b.seen = append(b.seen, seen{o, sb})
			about[sb.ID] = true
		}
		if o.Sandbox != "" {
			about[o.Sandbox] = true
		}
		for id := range about {
			b := c.box(id)
			b.done = append(b.done, o)
		}
	}
	for i := range c.history {
		o := &c.history[i]
		for _, e := range o.Executions {
			c.sort(o, e, starts[e.Seed])
		}
	}
}

func (c *checker) box(id string) *box {
	b := c.boxes[id]
	if b == nil {
		b = &box{id: id}
		c.boxes[id] = b
	}
	return b
}

func (c *checker) sort(o *Operation, e Execution, asked *Operation) {
	p := c.programs[e.ID]
	if p == nil {
		p = &program{id: e.ID, sandbox: e.Sandbox, asked: asked}
		c.programs[e.ID] = p
		if asked == nil {
			c.report("an execution that nobody asked for: "+e.ID, o)
			return
		}
		p.Program = asked.Program
		b := c.box(e.Sandbox)
		b.ran = append(b.ran, p)
	}
	p.seen = append(p.seen, ran{o, e})
	for _, tail := range e.Output {
		if p.me == (who{}) {
			p.me = p.whoOf(tail)
		}
	}
	if o.Sandbox != e.Sandbox || e.Sandbox != p.sandbox || e.Seed != p.Seed {
		c.report("an execution is another's: "+e.ID, o)
	}
}

// checkRefusals holds each refusal against what was known when it was asked for.
func (c *checker) checkRefusals() {
	for i := range c.history {
		o := &c.history[i]
		if o.Answer != Refused {
			continue
		}
		switch {
		case o.Code == "node_at_capacity" && o.Verb == Create: // checkCapacity
		case o.endedEarly():
		case o.Code == "sandbox_not_running" && (o.Verb == Start || o.Verb == Extend || o.Verb == Touch):
			if last := c.boxes[o.Sandbox].last(); last == nil || last.State != "stopped" || last.Stopped.After(o.Ended.Add(tick)) {
				c.report("refused as not running, and it ran", o)
			}
		default:
			c.report("an answer that nothing explains", o)
		}
	}
}

// endedEarly says that a sandbox lived for its TTL before it ran.
func (o *Operation) endedEarly() bool {
	return o.Verb == Create && o.Code == "sandbox_not_running" && o.Ended.Sub(o.Began) >= o.TTL
}

// last is the answer that was asked for last.
func (b *box) last() *seen {
	if b == nil || len(b.seen) == 0 {
		return nil
	}
	return &b.seen[len(b.seen)-1]
}

// checkMarks holds each sandbox against the create that made it: one create
// makes one sandbox, an id is given once.
func (c *checker) checkMarks() {
	given := map[string]*Operation{}
	for i := range c.history {
		o := &c.history[i]
		var ids []string
		switch o.Verb {
		case Create:
			for _, sb := range o.Sandboxes {
				ids = append(ids, sb.ID)
			}
		case Start:
			for _, e := range o.Executions {
				ids = append(ids, e.ID)
			}
		default:
		}
		for _, id := range ids {
			if first := given[id]; first != nil {
				c.report("an id was given twice: "+id, first, o)
			}
			given[id] = o
		}
	}
	made := map[string]string{}
	for _, b := range c.boxes {
		for _, s := range b.seen {
			create := c.creates[s.Mark]
			switch {
			case create == nil:
				c.report("a sandbox that nobody asked for: "+b.id, s.by)
			case create.Answer == Refused && !create.endedEarly():
				c.report("a refused create made a sandbox: "+b.id, create, s.by)
			case made[s.Mark] != "" && made[s.Mark] != b.id:
				c.report(fmt.Sprintf("one create made two sandboxes: %s and %s", made[s.Mark], b.id), create, s.by)
			}
			made[s.Mark] = b.id
		}
	}
}
