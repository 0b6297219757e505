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
	held map[[2]string]*input // by the ids of sandbox and execution; guarded by mu
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
	key := [2]string{sandboxID, id} // the caller's word: nobody has checked yet that they belong together
	in := i.held[key]
	if in == nil {
		in = &input{all: i, sandbox: sandboxID, id: id, turn: make(chan struct{}, 1), at: unknown}
		if i.held == nil {
			i.held = map[[2]string]*input{}
		}
		i.held[key] = in
	}
	in.holders++
	return in
}

func (in *input) leave() {
	in.all.mu.Lock()
	defer in.all.mu.Unlock()
	if in.holders--; in.holders == 0 {
		delete(in.all.held, [2]string{in.sandbox, in.id})
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
	soon, cancel := context.WithTimeout(ctx, turnWait)
	defer cancel()
	if err := in.take(soon); err != nil {
		if ctx.Err() != nil {
			return execution.Taken{}, err
		}
		return in.all.attached.Stdin(ctx, in.sandbox, in.id, execution.Input{}) // nothing of it: how far input is
	}
	defer func() { <-in.turn }()
	in.at = unknown
	taken, err := in.all.attached.Stdin(ctx, in.sandbox, in.id, piece)
	if err == nil && !taken.Behind {
		in.at = taken.Offset
	}
	return taken, err
}

// turnWait is how long a request with an offset waits for those before it.
const turnWait = 10 * time.Second

// typed writes behind all that came before, and returns when all of it was taken
// or none will be any more.
func (in *input) typed(ctx context.Context, data []byte) error {
	for len(data) > 0 {
		n, closed, err := in.typeOnce(ctx, data)
		if err != nil || closed {
			return err
		}
		if n == 0 {
			pause(ctx) // an honest guest has waited longer than this
		}
		data = data[n:]
	}
	return nil
}

// typeOnce has the turn for one request only: the program may not read, and
// others want to know at least how far it is.
func (in *input) typeOnce(ctx context.Context, data []byte) (n int64, closed bool, err error) {
	if err := in.take(ctx); err != nil {
		return 0, false, err
	}
	defer func() { <-in.turn }()
	if in.at == unknown {
		now, err := in.all.attached.Stdin(ctx, in.sandbox, in.id, execution.Input{})
		if err != nil || now.Closed || now.Behind {
			return 0, now.Closed, err
		}
		in.at = now.Offset
	}
	at := in.at
	in.at = unknown
	taken, err := in.all.attached.Stdin(ctx, in.sandbox, in.id, execution.Input{Offset: at, Data: data})
	switch n := taken.Offset - at; {
	case err != nil || taken.Closed:
		return 0, taken.Closed, err
	case n < 0 || n > int64(len(data)):
		return 0, false, guestLies()
	default:
		in.at = taken.Offset
		return n, false, nil
	}
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
