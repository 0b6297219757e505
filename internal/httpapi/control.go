package httpapi

import (
	"context"
	"time"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/httpapi/gen"
	"github.com/microvmd/microvm/internal/ident"
)

// checkExecution refuses ids that no execution can have.
func checkExecution(sandboxID, id string) error {
	if err := checkSandbox(sandboxID); err != nil {
		return err
	}
	if !ident.Valid(ident.Execution, id) {
		return execution.NotFound()
	}
	return nil
}

// CancelExecution is POST /v1/sandboxes/{sandbox}/executions/{execution}/cancel.
func (s *server) CancelExecution(ctx context.Context, r gen.CancelExecutionRequestObject) (gen.CancelExecutionResponseObject, error) {
	if err := checkExecution(r.Sandbox, r.Execution); err != nil {
		return nil, err
	}
	how := execution.Cancel{}
	if r.Body != nil {
		how.Signal = string(value(r.Body.Signal))
		how.Grace = time.Duration(value(r.Body.GraceSeconds)) * time.Second
	}
	canceled, err := s.Executions.Cancel(ctx, r.Sandbox, r.Execution, how)
	if err != nil {
		return nil, err
	}
	output, err := s.Executions.Output(canceled)
	if err != nil {
		return nil, err
	}
	return gen.CancelExecution200JSONResponse(wireExecution(canceled, &output)), nil
}

// WriteExecutionStdin is POST /v1/sandboxes/{sandbox}/executions/{execution}/stdin.
func (s *server) WriteExecutionStdin(ctx context.Context, r gen.WriteExecutionStdinRequestObject) (gen.WriteExecutionStdinResponseObject, error) {
	if err := checkExecution(r.Sandbox, r.Execution); err != nil {
		return nil, err
	}
	in := s.inputs.open(r.Sandbox, r.Execution)
	defer in.leave()
	taken, err := in.put(ctx, execution.Input{Offset: r.Body.Offset, Data: r.Body.Data, Close: value(r.Body.Close)})
	if err != nil {
		return nil, err
	}
	return gen.WriteExecutionStdin200JSONResponse{Object: gen.ExecutionStdinObjectExecutionStdin, Offset: taken.Offset, Closed: taken.Closed}, nil
}

// ResizeExecution is POST /v1/sandboxes/{sandbox}/executions/{execution}/resize.
func (s *server) ResizeExecution(ctx context.Context, r gen.ResizeExecutionRequestObject) (gen.ResizeExecutionResponseObject, error) {
	if err := checkExecution(r.Sandbox, r.Execution); err != nil {
		return nil, err
	}
	if err := s.Attached.Resize(ctx, r.Sandbox, r.Execution, execution.Size{Rows: r.Body.Rows, Cols: r.Body.Cols}); err != nil {
		return nil, err
	}
	resized, err := s.Executions.Wait(ctx, r.Sandbox, r.Execution, 0)
	if err != nil {
		return nil, err
	}
	return gen.ResizeExecution200JSONResponse(wireExecution(resized, nil)), nil
}
