package httpapi

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/httpapi/gen"
	"github.com/microvmd/microvm/internal/httpapi/stamp"
	"github.com/microvmd/microvm/internal/ident"
)

// CreateExecution is POST /v1/sandboxes/{sandbox}/executions.
func (s *server) CreateExecution(ctx context.Context, r gen.CreateExecutionRequestObject) (gen.CreateExecutionResponseObject, error) {
	if err := checkSandbox(r.Sandbox); err != nil {
		return nil, err
	}
	started, err := s.Executions.Start(ctx, r.Sandbox, execution.Spec{
		Cmd:     r.Body.Cmd,
		Args:    r.Body.Args,
		Cwd:     value(r.Body.Cwd),
		User:    value(r.Body.User),
		Timeout: time.Duration(value(r.Body.TimeoutSeconds)) * time.Second,
	})
	if err != nil {
		return nil, err
	}
	return gen.CreateExecution201JSONResponse(wireExecution(started, nil)), nil
}

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
		Object: gen.ListObjectList, URL: "/v1/sandboxes/" + r.Sandbox + "/executions", HasMore: found.HasMore,
		Data: make([]gen.Execution, 0, len(found.Data)),
	}
	for _, one := range found.Data {
		list.Data = append(list.Data, wireExecution(one, nil))
	}
	return list, nil
}

// GetExecution is GET /v1/sandboxes/{sandbox}/executions/{execution}.
func (s *server) GetExecution(ctx context.Context, r gen.GetExecutionRequestObject) (gen.GetExecutionResponseObject, error) {
	if err := checkSandbox(r.Sandbox); err != nil {
		return nil, err
	}
	if !ident.Valid(ident.Execution, r.Execution) {
		return nil, execution.NotFound()
	}
	var found execution.Execution
	var err error
	if wait := value(r.Params.Wait); wait > 0 {
		found, err = s.Executions.Wait(ctx, r.Sandbox, r.Execution, time.Duration(wait)*time.Second)
	} else {
		found, err = s.Executions.Get(ctx, r.Sandbox, r.Execution)
	}
	if err != nil {
		return nil, err
	}
	output, err := s.Executions.Output(ctx, r.Sandbox, r.Execution)
	if err != nil {
		return nil, err
	}
	return gen.GetExecution200JSONResponse(wireExecution(found, &output)), nil
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
