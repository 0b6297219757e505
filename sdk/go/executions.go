package microvm

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// waitStep is how long one request waits for an end: the API's maximum.
	waitStep = time.Minute
	// waitRetries lets a wait live through a restart of the daemon, about half
	// a minute: the execution itself goes on.
	waitRetries = 10
	// pollPause keeps a wait from asking without a break should a server answer
	// "running" at once.
	pollPause = 500 * time.Millisecond
)

// ExecutionService starts programs in a sandbox and follows them. Starting and
// waiting are two calls: a lost connection ends no execution.
type ExecutionService struct{ c *Client }

// Create starts a program and returns at once. A program that could not be
// started is a result: status failed, with its reason (see [Execution.Err]).
// It is repeated only when no connection could be made.
func (s *ExecutionService) Create(ctx context.Context, sandbox string, spec ExecutionCreate) (*Execution, error) {
	const verb = "start execution"
	path, err := executionsPath(sandbox)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", verb, err)
	}
	out := new(Execution)
	if err := s.c.call(ctx, request{verb: verb, method: http.MethodPost, path: path, json: spec}, out); err != nil {
		return nil, err
	}
	return out, nil
}

// Retrieve gets an execution with the tail of its output, also while it runs
// and after its sandbox has stopped.
func (s *ExecutionService) Retrieve(ctx context.Context, sandbox, id string) (*Execution, error) {
	return s.get(ctx, "get execution", sandbox, id, 0, 0)
}

// Wait returns the execution when it has ended. The context bounds the wait;
// when it is over, the execution as last seen comes back beside the error, and
// goes on. A daemon that restarts meanwhile is waited for, about half a minute.
func (s *ExecutionService) Wait(ctx context.Context, sandbox, id string) (*Execution, error) {
	var last *Execution
	for {
		asked := s.c.now()
		exe, err := s.get(ctx, "wait for execution", sandbox, id, waitStep, waitRetries)
		if err != nil {
			return last, err
		}
		if exe.Ended() {
			return exe, nil
		}
		last = exe
		if s.c.now().Sub(asked) < pollPause {
			if err := s.c.sleep(ctx, pollPause); err != nil {
				return last, fmt.Errorf("wait for execution: %w", context.Cause(ctx))
			}
		}
	}
}

// Run starts a program and waits until it has ended; a short one costs one
// request. An error is one of the calls; how the program ended is in the
// execution and its Err. When the wait was cut short the execution, as far as it
// is known, comes back beside the error: it may still run. As with Wait, a
// daemon that restarts meanwhile is waited for.
func (s *ExecutionService) Run(ctx context.Context, sandbox string, spec ExecutionCreate) (*Execution, error) {
	exe, err := s.begin(ctx, sandbox, spec)
	if exe == nil || (err == nil && exe.Ended()) {
		return exe, err
	}
	if ctx.Err() != nil {
		return exe, fmt.Errorf("run %s: %w", exe.ID, err)
	}
	ended, err := s.Wait(ctx, sandbox, exe.ID)
	if err != nil {
		if ended == nil {
			ended = exe
		}
		return ended, fmt.Errorf("run %s: %w", exe.ID, err)
	}
	return ended, nil
}

// begin starts a program and waits for its end in the same request. When the
// reply broke off after the server had named the execution, what is known of it
// comes back beside the error.
func (s *ExecutionService) begin(ctx context.Context, sandbox string, spec ExecutionCreate) (*Execution, error) {
	const verb = "start execution"
	path, err := executionsPath(sandbox)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", verb, err)
	}
	var id string
	out := new(Execution)
	r := request{verb: verb, method: http.MethodPost, path: path, query: waitQuery(waitStep), json: spec, wait: waitStep}
	err = s.c.try(ctx, r, func(reply *http.Response) error {
		id = idIn(reply.Header.Get("Location"))
		return decode(reply, out)
	})
	switch {
	case err == nil:
		return out, nil
	case id == "":
		return nil, err
	default:
		known := &Execution{
			ID: id, Object: ExecutionObjectExecution, Sandbox: sandbox, Cmd: spec.Cmd, Args: spec.Args, Cwd: spec.Cwd, User: spec.User,
			Status: ExecutionStatusRunning,
		}
		return known, err
	}
}

// idIn is the execution that a Location names, or "".
func idIn(location string) string {
	id := location[strings.LastIndexByte(location, '/')+1:]
	if !strings.HasPrefix(id, "exe_") {
		return ""
	}
	return id
}

// List gets one page of a sandbox's executions, newest first, without output.
func (s *ExecutionService) List(ctx context.Context, sandbox string, params ListExecutionsParams) (*ExecutionList, error) {
	const verb = "list executions"
	path, err := executionsPath(sandbox)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", verb, err)
	}
	out := new(ExecutionList)
	query := page(params.Limit, params.StartingAfter, params.EndingBefore)
	if err := s.c.call(ctx, request{verb: verb, method: http.MethodGet, path: path, query: query}, out); err != nil {
		return nil, err
	}
	return out, nil
}

// All iterates over all executions of a sandbox, newest first, page by page. It
// stops at the first error, which it yields. Limit is the size of a page
// (default 100); EndingBefore is ignored.
func (s *ExecutionService) All(ctx context.Context, sandbox string, params ListExecutionsParams) iter.Seq2[Execution, error] {
	params.EndingBefore = nil
	return all(params.Limit, params.StartingAfter, func(limit int, after *string) ([]Execution, bool, error) {
		params.Limit, params.StartingAfter = &limit, after
		list, err := s.List(ctx, sandbox, params)
		if err != nil {
			return nil, false, err
		}
		return list.Data, list.HasMore, nil
	}, func(exe Execution) string { return exe.ID })
}

func (s *ExecutionService) get(ctx context.Context, verb, sandbox, id string, wait time.Duration, retries int) (*Execution, error) {
	path, err := pathOf(sandbox, id)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", verb, err)
	}
	r := request{verb: verb, method: http.MethodGet, path: path, wait: wait, retries: retries}
	if wait > 0 {
		r.query = waitQuery(wait)
	}
	out := new(Execution)
	if err := s.c.call(ctx, r, out); err != nil {
		return nil, err
	}
	return out, nil
}

func waitQuery(wait time.Duration) url.Values {
	return url.Values{"wait": {strconv.Itoa(int(wait.Seconds()))}}
}

func executionsPath(sandbox string) (string, error) {
	segment, err := escape("a sandbox", sandbox)
	if err != nil {
		return "", err
	}
	return "/v1/sandboxes/" + segment + "/executions", nil
}

func pathOf(sandbox, id string) (string, error) {
	path, err := executionsPath(sandbox)
	if err != nil {
		return "", err
	}
	segment, err := escape("an execution", id)
	return path + "/" + segment, err
}
