package httpapi

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
)

// inputs lets those who write to one execution's input take turns: several
// terminals, and requests with an offset. What is typed at a terminal has no
// offset of its own; it goes behind all that came before it, which somebody has
// to keep count of.
type inputs struct {
	attached Attached

	mu   sync.Mutex
	held map[string]*input // by the execution's id; guarded by mu
}

// input is one execution's, as long as anybody writes to it.
type input struct {
	all         *inputs
	sandbox, id string
	holders     int           // guarded by all.mu
	turn        chan struct{} // full while somebody has the turn
	at          int64         // what was taken, or unknown; of who has the turn
}

const unknown = -1

// errGuestCounts is what a guest is blamed for whose count of input is none.
var errGuestCounts = errors.New("guest agent: took more input than there was, or gave some back")

func (i *inputs) open(sandboxID, id string) *input {
	i.mu.Lock()
	defer i.mu.Unlock()
	in := i.held[id]
	if in == nil {
		in = &input{all: i, sandbox: sandboxID, id: id, turn: make(chan struct{}, 1), at: unknown}
		if i.held == nil {
			i.held = map[string]*input{}
		}
		i.held[id] = in
	}
	in.holders++
	return in
}

func (in *input) leave() {
	in.all.mu.Lock()
	defer in.all.mu.Unlock()
	if in.holders--; in.holders == 0 {
		delete(in.all.held, in.id)
	}
}

func (in *input) take(ctx context.Context) error {
	select {
	case in.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// put writes a piece whose place the caller knows.
func (in *input) put(ctx context.Context, piece execution.Input) (execution.Taken, error) {
	if err := in.take(ctx); err != nil {
		return execution.Taken{}, err
	}
	defer func() { <-in.turn }()
	in.at = unknown
	taken, err := in.all.attached.Stdin(ctx, in.sandbox, in.id, piece)
	if err == nil {
		in.at = taken.Offset
	}
	return taken, err
}

// typed writes behind all that came before, and returns when all of it was taken
// or none will be any more.
func (in *input) typed(ctx context.Context, data []byte) error {
	if err := in.take(ctx); err != nil {
		return err
	}
	defer func() { <-in.turn }()
	for len(data) > 0 {
		if in.at == unknown {
			if err := in.find(ctx); err != nil {
				return err
			}
		}
		at := in.at
		in.at = unknown
		taken, err := in.all.attached.Stdin(ctx, in.sandbox, in.id, execution.Input{Offset: at, Data: data})
		switch n := taken.Offset - at; {
		case err != nil:
			return err
		case taken.Closed:
			return nil
		case n < 0 || n > int64(len(data)):
			return guestLies()
		case n == 0:
			pause(ctx) // an honest guest has waited longer than this
		}
		data = data[taken.Offset-at:]
		in.at = taken.Offset
	}
	return nil
}

// stallPause bounds how often a guest is asked that takes nothing.
const stallPause = 100 * time.Millisecond

func pause(ctx context.Context) {
	select {
	case <-time.After(stallPause):
	case <-ctx.Done():
	}
}

func guestLies() error {
	return fault.Wrap(errGuestCounts, fault.GuestUnreachable, "the guest does not answer as it should; get the sandbox to see whether it still runs")
}

// find finds where input is, once the program has read the text that it was
// started with.
func (in *input) find(ctx context.Context) error {
	for {
		taken, err := in.all.attached.Stdin(ctx, in.sandbox, in.id, execution.Input{})
		if err != nil {
			return err
		}
		if !taken.Behind {
			in.at = taken.Offset
			return nil
		}
		pause(ctx) // Stdin has waited for the program
	}
}
