package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/httpapi/gen"
	"github.com/microvmd/microvm/internal/httpapi/stamp"
	"github.com/microvmd/microvm/internal/ident"
	"github.com/microvmd/microvm/internal/secret"
)

// CreateExecution is POST /v1/sandboxes/{sandbox}/executions.
func (s *server) CreateExecution(ctx context.Context, r gen.CreateExecutionRequestObject) (gen.CreateExecutionResponseObject, error) {
	if err := checkSandbox(r.Sandbox); err != nil {
		return nil, err
	}
	size, err := terminalSize(r.Body)
	if err != nil {
		return nil, err
	}
	started, err := s.Executions.Start(ctx, r.Sandbox, execution.Spec{
		Cmd:       r.Body.Cmd,
		Args:      r.Body.Args,
		Cwd:       value(r.Body.Cwd),
		User:      value(r.Body.User),
		Timeout:   time.Duration(value(r.Body.TimeoutSeconds)) * time.Second,
		Env:       secret.Env(r.Body.Env),
		Stdin:     value(r.Body.Stdin),
		StdinOpen: value(r.Body.StdinOpen),
		TTY:       size,
	})
	if err != nil {
		return nil, err
	}
	path := executionsPath(r.Sandbox) + "/" + started.ID
	reply := func(wire gen.Execution) gen.CreateExecutionResponseObject {
		return gen.CreateExecution201JSONResponse{Body: wire, Headers: gen.CreateExecution201ResponseHeaders{Location: path}}
	}
	wait := time.Duration(value(r.Params.Wait)) * time.Second
	if wait == 0 {
		return reply(wireExecution(started, nil)), nil
	}
	soon, err := s.awaitExecution(ctx, r.Sandbox, started.ID, quietWait)
	if err != nil {
		return nil, err
	}
	if soon.Status != gen.ExecutionStatusRunning {
		return reply(soon), nil
	}
	return longWait{path: path, await: func() (gen.Execution, error) {
		return s.awaitExecution(ctx, r.Sandbox, started.ID, wait-quietWait)
	}}, nil
}

// The size of a terminal unless the caller says another: what terminals had
// before they could be asked.
const (
	defaultRows = 24
	defaultCols = 80
)

// terminalSize is the size of the terminal that is asked for, or nil for none.
func terminalSize(body *gen.CreateExecutionJSONRequestBody) (*execution.Size, error) {
	if value(body.TTY) {
		size := execution.Size{Rows: defaultRows, Cols: defaultCols}
		if body.Rows != nil {
			size.Rows = *body.Rows
		}
		if body.Cols != nil {
			size.Cols = *body.Cols
		}
		return &size, nil
	}
	for _, field := range []struct {
		name  string
		value *int
	}{{"rows", body.Rows}, {"cols", body.Cols}} {
		if field.value != nil {
			return nil, fault.Param(field.name, "%s is the size of a terminal, and none is asked for; add tty: true, or leave it out", field.name)
		}
	}
	return nil, nil
}

// quietWait is how long a caller that waits for an execution's end hears
// nothing: most programs have ended by then, and cost one plain reply.
const quietWait = 100 * time.Millisecond

// longWait replies 201 with the execution's path at once, and with the execution
// when await returns: a caller whose connection breaks in between knows what to
// ask for.
type longWait struct {
	path  string
	await func() (gen.Execution, error)
}

// VisitCreateExecutionResponse writes the reply.
func (l longWait) VisitCreateExecutionResponse(w http.ResponseWriter) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", l.path)
	w.WriteHeader(http.StatusCreated)
	if err := http.NewResponseController(w).Flush(); err != nil {
		return fmt.Errorf("write reply: %w", err)
	}
	wire, err := l.await()
	if err != nil {
		return err // cuts the reply
	}
	return json.NewEncoder(w).Encode(wire)
}

// awaitExecution waits for an execution's end, at most for wait, and adds its
// output.
func (s *server) awaitExecution(ctx context.Context, sandboxID, id string, wait time.Duration) (gen.Execution, error) {
	found, err := s.Executions.Wait(ctx, sandboxID, id, wait)
	if err != nil {
		return gen.Execution{}, err
	}
	output, err := s.Executions.Output(found)
	if err != nil {
		return gen.Execution{}, err
	}
	return wireExecution(found, &output), nil
}

func executionsPath(sandboxID string) string { return "/v1/sandboxes/" + sandboxID + "/executions" }

// ListExecutions is GET /v1/sandboxes/{sandbox}/executions.
func (s *server) ListExecutions(ctx context.Context, r gen.ListExecutionsRequestObject) (gen.ListExecutionsResponseObject, error) {
	if err := checkSandbox(r.Sandbox); err != nil {
		return nil, err
	}
	page, err := cursor(ident.Execution, r.Params.Limit, r.Params.StartingAfter, r.Params.EndingBefore)
	if err != nil {
		return nil, err
	}
	found, err := s.Executions.List(ctx, execution.Query{
		Sandbox: r.Sandbox, StartingAfter: page.after, EndingBefore: page.before, Limit: page.limit,
	})
	if err != nil {
		return nil, err
	}
	list := gen.ListExecutions200JSONResponse{
		Object: gen.ListObjectList, URL: executionsPath(r.Sandbox), HasMore: found.HasMore,
		Data: make([]gen.Execution, 0, len(found.Data)),
	}
	for _, one := range found.Data {
		list.Data = append(list.Data, wireExecution(one, nil))
	}
	return list, nil
}

// GetExecution is GET /v1/sandboxes/{sandbox}/executions/{execution}.
func (s *server) GetExecution(ctx context.Context, r gen.GetExecutionRequestObject) (gen.GetExecutionResponseObject, error) {
	if err := checkExecution(r.Sandbox, r.Execution); err != nil {
		return nil, err
	}
	found, err := s.awaitExecution(ctx, r.Sandbox, r.Execution, time.Duration(value(r.Params.Wait))*time.Second)
	if err != nil {
		return nil, err
	}
	return gen.GetExecution200JSONResponse(found), nil
}

// wireExecution is the wire form; without output it says of each stream that
// something is left out when there is anything.
func wireExecution(e execution.Execution, output *execution.Output) gen.Execution {
	wire := gen.Execution{
		ID:              e.ID,
		Object:          gen.ExecutionObjectExecution,
		Sandbox:         e.Sandbox,
		Cmd:             e.Cmd,
		Args:            append([]string{}, e.Args...),
		Cwd:             orNil(e.Cwd),
		User:            orNil(e.User),
		TimeoutSeconds:  int(e.Timeout / time.Second),
		TTY:             e.TTY,
		StdinOpen:       e.StdinOpen,
		Status:          gen.ExecutionStatus(e.Status),
		Reason:          orNil(gen.ExecutionReason(e.Reason)),
		ExitCode:        e.ExitCode,
		Signal:          orNil(e.Signal),
		OOMKilled:       e.OOMKilled,
		StdoutBytes:     e.StdoutBytes,
		StderrBytes:     e.StderrBytes,
		StdoutTruncated: e.StdoutBytes > 0,
		StderrTruncated: e.StderrBytes > 0,
		Created:         stamp.Time(e.Created),
		Finished:        wireTime(e.Finished),
	}
	if !e.Finished.IsZero() {
		took := max(e.Finished.Sub(e.Created).Milliseconds(), 0) // the wall clock may step
		wire.DurationMS = &took
	}
	if output != nil {
		wire.Stdout, wire.StdoutTruncated = text(output.Stdout)
		wire.Stderr, wire.StderrTruncated = text(output.Stderr)
		// A running program may have written more since e was read.
		wire.StdoutBytes = max(e.StdoutBytes, output.Stdout.Offset+int64(len(output.Stdout.Bytes)))
		wire.StderrBytes = max(e.StderrBytes, output.Stderr.Offset+int64(len(output.Stderr.Bytes)))
	}
	return wire
}

// text is a tail as UTF-8. A front that fell out may have cut a rune in two:
// what is left of it is dropped with the front.
func text(tail execution.Tail) (content string, truncated bool) {
	bytes := tail.Bytes
	truncated = tail.Offset > 0
	for i := 0; truncated && i < utf8.UTFMax-1 && len(bytes) > 0 && !utf8.RuneStart(bytes[0]); i++ {
		bytes = bytes[1:]
	}
	return strings.ToValidUTF8(string(bytes), "\uFFFD"), truncated
}
