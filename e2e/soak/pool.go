package soak

import (
	"math/rand/v2"
	"slices"
	"sync"
)

// pool is what the callers know of: nobody asks for an id that no answer had.
type pool struct {
	mu    sync.Mutex
	box   map[string]*known // guarded by mu; by id
	lives []string          // guarded by mu; ids of those that may run
	olds  []string          // guarded by mu; ids of those that have stopped
	some  []reference       // guarded by mu; the latest executions
	grown chan struct{}     // guarded by mu; closed when another one is known; nil when nobody asked
}

// known is a sandbox that an answer had.
type known struct {
	stopped    bool
	executions []string
}

type reference struct{ sandbox, execution string }

// latest is how many executions are looked at while others are started.
const latest = 40

// saw learns from an answer.
func (p *pool) saw(o Operation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.box == nil {
		p.box = map[string]*known{}
	}
	for _, sb := range o.Sandboxes {
		k := p.box[sb.ID]
		if k == nil {
			k = &known{}
			p.box[sb.ID] = k
			p.lives = append(p.lives, sb.ID)
			if p.grown != nil {
				close(p.grown)
				p.grown = nil
			}
		}
		if sb.State == "stopped" {
			p.stoppedLocked(sb.ID)
		}
	}
	if o.Code == "sandbox_not_running" {
		p.stoppedLocked(o.Sandbox)
	}
	for _, e := range o.Executions {
		k := p.box[e.Sandbox]
		if k == nil || slices.Contains(k.executions, e.ID) {
			continue
		}
		k.executions = append(k.executions, e.ID)
		p.some = append(p.some, reference{e.Sandbox, e.ID})
		p.some = p.some[max(0, len(p.some)-latest):]
	}
}

func (p *pool) stoppedLocked(id string) {
	k := p.box[id]
	if k == nil || k.stopped {
		return
	}
	k.stopped = true
	p.lives = slices.DeleteFunc(p.lives, func(other string) bool { return other == id })
	p.olds = append(p.olds, id)
}

// another is closed when another sandbox is known.
func (p *pool) another() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.grown == nil {
		p.grown = make(chan struct{})
	}
	return p.grown
}

func (p *pool) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lives)
}

// live is the id of one that may run; "" if there is none.
func (p *pool) live(luck *rand.Rand) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return pick(luck, p.lives)
}

// ended is the id of one that has stopped; "" if there is none.
func (p *pool) ended(luck *rand.Rand) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return pick(luck, p.olds)
}

// execution is one of the latest.
func (p *pool) execution(luck *rand.Rand) (sandbox, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := pick(luck, p.some)
	return r.sandbox, r.execution
}

func (p *pool) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append(slices.Clone(p.lives), p.olds...)
}

func (p *pool) executionsOf(id string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.box[id].executions)
}

// pick takes one of a list; the zero value of none.
func pick[T any](luck *rand.Rand, from []T) T {
	var none T
	if len(from) == 0 {
		return none
	}
	return from[luck.IntN(len(from))]
}
