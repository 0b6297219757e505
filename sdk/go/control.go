package microvm

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// cancelWait is how long the node may wait for the end of what it cancels.
const cancelWait = 5 * time.Second

// Cancel sends a signal to a program, SIGKILL unless spec says another, and kills
// what is left of it after the grace. It returns the execution with the tail of
// its output, when it has ended or after 5 s: then Wait for its end. One that has
// ended already is refused as execution_not_running. It is repeated only when no
// connection could be made, as a program may count signals.
func (s *ExecutionService) Cancel(ctx context.Context, sandbox, id string, spec ExecutionCancel) (*Execution, error) {
	return s.control(ctx, request{verb: "cancel execution", json: spec, wait: cancelWait}, sandbox, id, "/cancel")
}

// Resize changes the size of the terminal of an execution that was started with
// TTY: 1 to 1000 rows and columns. It returns the execution without output.
func (s *ExecutionService) Resize(ctx context.Context, sandbox, id string, size TerminalSize) (*Execution, error) {
	return s.control(ctx, request{verb: "resize terminal", json: size, again: true}, sandbox, id, "/resize")
}

// control posts to what lies below an execution's path.
func (s *ExecutionService) control(ctx context.Context, r request, sandbox, id, below string) (*Execution, error) {
	path, err := pathOf(sandbox, id)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.verb, err)
	}
	r.method, r.path = http.MethodPost, path+below
	out := new(Execution)
	if err := s.c.call(ctx, r, out); err != nil {
		return nil, err
	}
	return out, nil
}

// TicketService makes what stands for a key once, on one route.
type TicketService struct{ c *Client }

// Create makes a ticket for the path of an execution's stream or terminal, for a
// browser: its EventSource and WebSocket cannot send a key, but ?ticket= of
// these two routes. It lasts one minute, and the first use ends it.
func (s *TicketService) Create(ctx context.Context, path string) (*Ticket, error) {
	out := new(Ticket)
	r := request{verb: "make ticket", method: http.MethodPost, path: "/v1/tickets", json: TicketCreate{Method: TicketCreateMethodGET, Path: path}}
	if err := s.c.call(ctx, r, out); err != nil {
		return nil, err
	}
	return out, nil
}
