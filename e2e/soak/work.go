package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Work is a workload. The same seed asks for the same things in the same order
// in each worker; how the workers' requests fall between each other, and what a
// kill strikes, is the machine's doing.
type Work struct {
	Driver      Driver
	Seed        uint64
	Operations  int // requests, kills not counted
	DaemonKills int
	VMMKills    int
	Workers     int
	Most        int // sandboxes that are kept at once; now and then one more is asked for
	Pace        Pace
}

// Pace is how long things take on a node, so that they happen while others do.
type Pace struct {
	Lines   int           // at most, of a usual program
	Line    time.Duration // at most, between two lines
	Look    time.Duration // at most, that a look waits
	Short   time.Duration // at least, of a TTL or an idle time that is to end meanwhile; whole seconds
	Shorts  time.Duration // at most; whole seconds
	Loud    int           // lines of a program that writes more than is kept; 0: there is none
	Timeout time.Duration // of an execution that is to be killed; whole seconds
	Calm    time.Duration // that a kill waits at most for the first create after the one before
}

// run is one run of a workload.
type run struct {
	Work
	history *History
	pool    pool
	taken   atomic.Int64       // operations that were begun
	kills   map[int64]Verb     // at which operation each is due
	due     chan Verb          // those that are
	failed  context.CancelFunc // ends everything after what makes no sense to go on from
	broken  error              // by the killer, before it ends
}

// Run does the work, then looks at everything once more, ends it, and looks
// again. It returns what was recorded; an error is a node that could not go on.
func (w Work) Run(ctx context.Context) ([]Operation, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &run{Work: w, history: &History{}, due: make(chan Verb), failed: cancel}
	r.plan()
	killed := make(chan struct{})
	go func() { defer close(killed); r.kill(ctx) }()
	var workers sync.WaitGroup
	for i := range w.Workers {
		workers.Go(func() { r.work(ctx, r.luck(uint64(i)+1)) })
	}
	workers.Wait()
	close(r.due)
	<-killed
	if r.broken == nil {
		r.drain(ctx)
	}
	return r.history.Operations(), errors.Join(r.broken, ctx.Err())
}

// luck is a source of chance of one worker.
func (r *run) luck(stream uint64) *rand.Rand {
	return rand.New(rand.NewPCG(r.Seed, stream)) //nolint:gosec // it must be repeatable
}

// plan spreads the kills over the operations.
func (r *run) plan() {
	luck := r.luck(0)
	r.kills = map[int64]Verb{}
	for range r.DaemonKills + r.VMMKills {
		at := int64(luck.IntN(r.Operations))
		for r.kills[at] != "" {
			at = (at + 1) % int64(r.Operations)
		}
		r.kills[at] = KillVMM
		if len(r.kills) <= r.DaemonKills {
			r.kills[at] = KillDaemon
		}
	}
}

// kill does what is due.
func (r *run) kill(ctx context.Context) {
	luck := r.luck(1 << 32)
	another := r.pool.another()
	for verb := range r.due {
		r.calm(ctx, luck, another)
		if ctx.Err() != nil {
			continue
		}
		if verb == KillVMM && r.killVMM(luck) {
			continue // without a VMM the daemon takes its turn
		}
		o := r.history.begin(Operation{Verb: KillDaemon})
		step, err := r.Driver.KillDaemon(ctx, luck, func() {
			if luck.IntN(3) == 0 {
				r.killVMM(luck)
			}
		})
		o.Step = step
		r.history.end(o, err)
		if err != nil {
			r.broken = fmt.Errorf("kill and start the daemon (%s): %w", step, err)
			r.failed()
			continue
		}
		r.list(ctx) // finds what was made for a caller that never heard of it
		another = r.pool.another()
	}
}

// calm lets a daemon live until it has made something, most of the time: else
// slow creates would all be lost, and nothing would be there to outlive it.
func (r *run) calm(ctx context.Context, luck *rand.Rand, another <-chan struct{}) {
	if luck.IntN(3) == 0 {
		return
	}
	timer := time.NewTimer(r.Pace.Calm)
	defer timer.Stop()
	select {
	case <-another:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// killVMM kills the VMM of one that may run, if there is one.
func (r *run) killVMM(luck *rand.Rand) bool {
	id := r.pool.live(luck)
	if id == "" {
		return false
	}
	o := r.history.begin(Operation{Verb: KillVMM, Sandbox: id})
	r.history.end(o, r.Driver.KillVMM(id))
	return true
}

// work asks for one thing after the other.
func (r *run) work(ctx context.Context, luck *rand.Rand) {
	for ctx.Err() == nil {
		n := r.taken.Add(1) - 1
		if n >= int64(r.Operations) {
			return
		}
		if verb := r.kills[n]; verb != "" {
			r.due <- verb // waits for the one before: kills are among the operations, and not after them
		}
		r.one(ctx, luck)
	}
}

// one asks for one thing.
func (r *run) one(ctx context.Context, luck *rand.Rand) {
	id := r.pool.live(luck)
	full := r.pool.size() >= r.Most
	if luck.IntN(20) == 0 { // those that have ended are asked for, too
		if old := r.pool.ended(luck); old != "" {
			id = old
		}
	}
	dice := luck.IntN(100)
	switch {
	case id == "" || dice < 12 && !full || dice < 1:
		r.create(ctx, luck)
	case dice < 40:
		r.start(ctx, luck, id)
	case dice < 70:
		sandbox, execution := r.pool.execution(luck)
		if execution == "" {
			r.start(ctx, luck, id)
			return
		}
		r.look(ctx, sandbox, execution, time.Duration(luck.Int64N(int64(r.Pace.Look))))
	case dice < 80:
		r.ask(ctx, Operation{Verb: Get, Sandbox: id})
	case dice < 82:
		r.list(ctx)
	case dice < 84:
		r.executions(ctx, id)
	case dice < 92:
		r.ask(ctx, Operation{Verb: Delete, Sandbox: id})
	case dice < 96:
		r.ask(ctx, Operation{Verb: Extend, Sandbox: id, TTL: time.Duration(1+luck.IntN(900)) * time.Second})
	default:
		r.ask(ctx, Operation{Verb: Touch, Sandbox: id})
	}
}

func (r *run) create(ctx context.Context, luck *rand.Rand) {
	o := Operation{Verb: Create, TTL: 15 * time.Minute}
	short := func() time.Duration {
		return time.Duration(1+luck.Int64N(int64(r.Pace.Short/time.Second))) * time.Second
	}
	switch luck.IntN(8) {
	case 0:
		o.TTL = short()
	case 1:
		o.Idle = short()
	}
	o = r.history.begin(o)
	o.Mark = fmt.Sprint(o.Number)
	sb, err := r.Driver.Create(ctx, Spec{Mark: o.Mark, TTL: o.TTL, Idle: o.Idle})
	if err == nil {
		o.Sandboxes = []Sandbox{sb}
	}
	r.pool.saw(r.history.end(o, err))
}

func (r *run) start(ctx context.Context, luck *rand.Rand, id string) {
	o := r.history.begin(Operation{Verb: Start, Sandbox: id})
	o.Program = Program{
		Seed: fmt.Sprintf("p%d", o.Number), Lines: luck.IntN(r.Pace.Lines), Pace: time.Duration(luck.Int64N(int64(r.Pace.Line))).Truncate(time.Millisecond),
		Code: luck.IntN(256), Timeout: 5 * time.Minute,
	}
	switch dice := luck.IntN(200); {
	case dice < 6:
		o.Program.Missing = true
	case dice < 12: // it would take for ever
		o.Program.Lines, o.Program.Pace, o.Program.Timeout = 2, time.Hour, r.Pace.Timeout
	case dice < 13 && r.Pace.Loud > 0:
		o.Program.Lines, o.Program.Pace = r.Pace.Loud, 0
	}
	e, err := r.Driver.Start(ctx, id, o.Program)
	if err == nil {
		o.Executions = []Execution{e}
	}
	r.pool.saw(r.history.end(o, err))
}

func (r *run) look(ctx context.Context, sandbox, id string, wait time.Duration) Operation {
	o := r.history.begin(Operation{Verb: Look, Sandbox: sandbox, Execution: id})
	e, err := r.Driver.Look(ctx, sandbox, id, wait)
	if err == nil {
		o.Executions = []Execution{e}
	}
	o = r.history.end(o, err)
	r.pool.saw(o)
	return o
}

// ask is a request about one sandbox that answers with it.
func (r *run) ask(ctx context.Context, o Operation) {
	o = r.history.begin(o)
	var sb Sandbox
	var err error
	switch o.Verb {
	case Delete:
		sb, err = r.Driver.Delete(ctx, o.Sandbox)
	case Extend:
		sb, err = r.Driver.Extend(ctx, o.Sandbox, o.TTL)
	case Touch:
		sb, err = r.Driver.Touch(ctx, o.Sandbox)
	default:
		sb, err = r.Driver.Get(ctx, o.Sandbox)
	}
	if err == nil {
		o.Sandboxes = []Sandbox{sb}
	}
	r.pool.saw(r.history.end(o, err))
}

func (r *run) list(ctx context.Context) {
	o := r.history.begin(Operation{Verb: List})
	var err error
	o.Sandboxes, err = r.Driver.Running(ctx)
	r.pool.saw(r.history.end(o, err))
}

func (r *run) executions(ctx context.Context, id string) {
	o := r.history.begin(Operation{Verb: Executions, Sandbox: id})
	var err error
	o.Executions, err = r.Driver.Executions(ctx, id)
	r.pool.saw(r.history.end(o, err))
}

// drain looks at everything, ends what still runs, and looks at everything again:
// by then each sandbox has stopped and each execution has ended.
func (r *run) drain(ctx context.Context) {
	r.list(ctx)
	var group sync.WaitGroup
	turns := make(chan struct{}, r.Workers)
	for _, id := range r.pool.all() {
		group.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			r.ask(ctx, Operation{Verb: Get, Sandbox: id})
			r.ask(ctx, Operation{Verb: Delete, Sandbox: id})
			r.executions(ctx, id)
			for _, e := range r.pool.executionsOf(id) {
				r.look(ctx, id, e, 10*time.Second) // at once, but for the moment in which an ending is stored
			}
			r.ask(ctx, Operation{Verb: Get, Sandbox: id})
		})
	}
	group.Wait()
}
