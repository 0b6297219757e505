package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// sample does the work once and says how long it took. What it leaves behind it
// removes itself, outside of that time.
type sample func(context.Context) (time.Duration, error)

// figure is what is measured and how.
type figure struct {
	name, title string
	subject     string // what is measured
	floor       string // what the floor is
	goal        float64
	each        int  // samples in one round: more where one is short
	inside      bool // it runs in the sandbox that was read; such figures come first
	// open makes what the samples need and leaves the way back on the stack.
	open func(context.Context, *undo) (subject, floor sample, err error)
}

// measure runs one figure: a round to warm up, then as many as asked for. In
// every other round the floor comes first, so that a host that grows faster or
// slower favours neither side.
func (f figure) measure(ctx context.Context, rounds int, progress io.Writer) (result Result, err error) {
	back := &undo{}
	defer func() {
		if failed := back.run(); failed != nil {
			err = errors.Join(err, fmt.Errorf("clean up after %s: %w", f.name, failed))
		}
	}()
	say(progress, "%s: prepare\n", f.title)
	subject, floor, err := f.open(ctx, back)
	if err != nil {
		return Result{}, fmt.Errorf("prepare %s: %w", f.name, interrupted(ctx, err))
	}
	var ours, bare []time.Duration
	take := func(name string, do sample, into *[]time.Duration) error {
		for range f.each {
			took, err := do(ctx)
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return fmt.Errorf("measure %s (%s): %w", f.name, name, interrupted(ctx, err))
			}
			*into = append(*into, took)
		}
		return nil
	}
	for round := range rounds + 1 {
		var ourRound, bareRound []time.Duration
		ourTurn := func() error { return take("measured", subject, &ourRound) }
		bareTurn := func() error { return take("floor", floor, &bareRound) }
		turns := []func() error{ourTurn, bareTurn}
		if round%2 == 1 {
			turns = []func() error{bareTurn, ourTurn}
		}
		for _, turn := range turns {
			if err := turn(); err != nil {
				return Result{}, err
			}
		}
		if round == 0 {
			say(progress, "%s: warm\n", f.title)
			continue
		}
		ours, bare = append(ours, ourRound...), append(bare, bareRound...)
		say(progress, "%s: round %d of %d\n", f.title, round, rounds)
	}
	return f.result(ours, bare), nil
}

func (f figure) result(ours, bare []time.Duration) Result {
	r := Result{
		Name: f.name, Title: f.title, Subject: f.subject, FloorIs: f.floor,
		Measured: Summarize(ours), Floor: Summarize(bare), Goal: f.goal,
	}
	r.Ratio = r.Measured.Median / r.Floor.Median
	r.GoalMet = r.Ratio <= f.goal
	return r
}

// interrupted puts the end of the context in the place of whatever failed by it,
// or with it.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// say writes for people what nothing depends on.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
