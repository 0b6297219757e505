package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/sandbox"
)

// A power cut ends every execution and may take output; it may take rows too, for
// two syncs less in each execution's way.

const selectExecution = `SELECT id, sandbox, cmd, args, cwd, run_as, timeout_ms, deadline_ms, tty, stdin_open, pid, status, reason, exit_code, signal,
	oom_killed, stdout_bytes, stderr_bytes, created_ms, finished_ms FROM executions`

// Of an execution's way; see often.
const (
	findSandbox = "SELECT 1 FROM sandboxes WHERE id = $1"

	insertExecution = `INSERT INTO executions (id, sandbox, cmd, args, cwd, run_as, timeout_ms, status, reason,
		exit_code, signal, oom_killed, stdout_bytes, stderr_bytes, created_ms, finished_ms, deadline_ms, tty, stdin_open)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19) ON CONFLICT DO NOTHING`

	finishExecution = `UPDATE executions SET status = $3, reason = $4, exit_code = $5, signal = $6, oom_killed = $7,
		stdout_bytes = $8, stderr_bytes = $9, finished_ms = $10, pid = $11 WHERE id = $1 AND sandbox = $2 AND status = 'running'`
)

func scanExecution(r row) (execution.Execution, error) {
	var e execution.Execution
	var args string
	var code sql.Null[int]
	var timeout, deadline, tty, stdin, oom, created, finished int64
	if err := r.Scan(&e.ID, &e.Sandbox, &e.Cmd, &args, &e.Cwd, &e.User, &timeout, &deadline, &tty, &stdin, &e.PID, &e.Status, &e.Reason, &code, &e.Signal, &oom,
		&e.StdoutBytes, &e.StderrBytes, &created, &finished); err != nil {
		return e, err
	}
	if args != "[]" {
		if err := json.Unmarshal([]byte(args), &e.Args); err != nil {
			return e, fmt.Errorf("args of %s: %w", e.ID, err)
		}
	}
	if code.Valid {
		e.ExitCode = &code.V
	}
	e.Timeout, e.Deadline = time.Duration(timeout)*time.Millisecond, time.Duration(deadline)*time.Millisecond
	e.TTY, e.StdinOpen, e.OOMKilled = tty != 0, stdin != 0, oom != 0
	e.Created, e.Finished = fromMillis(created), fromMillis(finished)
	return e, nil
}

// checkExecution refuses what would be a lie in the table.
func checkExecution(e execution.Execution) error {
	switch {
	case e.ID == "" || e.Sandbox == "" || e.Status == "":
		return errors.New("an execution needs an id, a sandbox and a status")
	case (e.Status == execution.Running) != e.Finished.IsZero():
		return fmt.Errorf("%s is %s: a time of its end belongs to one that has ended, and only to it", e.ID, e.Status)
	}
	return nil
}

func flag(on bool) int64 {
	if on {
		return 1
	}
	return 0
}

// InsertExecution adds a new one. Without its sandbox it is a
// fault.SandboxNotFound.
func (s *Store) InsertExecution(ctx context.Context, e execution.Execution) error {
	const op = "insert execution"
	if err := checkExecution(e); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	args := []byte("[]")
	if len(e.Args) > 0 {
		var err error
		if args, err = json.Marshal(e.Args); err != nil {
			return fmt.Errorf("%s: args: %w", op, err)
		}
	}
	return s.explain(op, s.insert(ctx, written, func(tx *sql.Tx) error {
		var there int
		err := within(ctx, tx, s.often.findSandbox).QueryRowContext(ctx, e.Sandbox).Scan(&there)
		if errors.Is(err, sql.ErrNoRows) {
			return sandbox.NotFound()
		}
		if err != nil {
			return err
		}
		n, err := affected(within(ctx, tx, s.often.insertExecution).ExecContext(ctx,
			e.ID, e.Sandbox, e.Cmd, string(args), e.Cwd, e.User, e.Timeout.Milliseconds(), e.Status, e.Reason,
			e.ExitCode, e.Signal, flag(e.OOMKilled), e.StdoutBytes, e.StderrBytes, toMillis(e.Created), toMillis(e.Finished), e.Deadline.Milliseconds(),
			flag(e.TTY), flag(e.StdinOpen)))
		if err == nil && n == 0 {
			err = fmt.Errorf("%s %w", e.ID, errThere)
		}
		return err
	}))
}

// CauseExecution stores Reason, for which a running execution is being ended. The
// first stays, as does the end of one that has ended:
// execution.ErrAlreadyFinished.
func (s *Store) CauseExecution(ctx context.Context, e execution.Execution) error {
	return s.explain("store cause", s.transaction(ctx, written, func(tx *sql.Tx) error {
		n, err := affected(tx.ExecContext(ctx, `UPDATE executions SET reason = $3 WHERE id = $1 AND sandbox = $2 AND status = 'running' AND reason = ''`,
			e.ID, e.Sandbox, e.Reason))
		if err != nil || n == 1 {
			return err
		}
		return whyNotRunning(ctx, tx, e)
	}))
}

// whyNotRunning explains a change of a running execution that changed nothing.
func whyNotRunning(ctx context.Context, tx *sql.Tx, e execution.Execution) error {
	var status execution.Status
	err := tx.QueryRowContext(ctx, "SELECT status FROM executions WHERE id = $1 AND sandbox = $2", e.ID, e.Sandbox).Scan(&status)
	if errors.Is(err, sql.ErrNoRows) {
		return execution.NotFound()
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("%s is %s: %w", e.ID, status, execution.ErrAlreadyFinished)
}

// FinishExecution stores how a running execution ended: Status, Reason, PID,
// ExitCode, Signal, OOMKilled, both byte counts and Finished. One that has ended
// keeps its end: execution.ErrAlreadyFinished.
func (s *Store) FinishExecution(ctx context.Context, e execution.Execution) error {
	const op = "finish execution"
	if err := checkExecution(e); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if e.Status == execution.Running {
		return fmt.Errorf("%s: %s: running is no end", op, e.ID)
	}
	return s.explain(op, s.transaction(ctx, written, func(tx *sql.Tx) error {
		n, err := affected(within(ctx, tx, s.often.finishExecution).ExecContext(ctx,
			e.ID, e.Sandbox, e.Status, e.Reason, e.ExitCode, e.Signal, flag(e.OOMKilled), e.StdoutBytes, e.StderrBytes,
			toMillis(e.Finished), e.PID))
		if err != nil || n == 1 {
			return err
		}
		return whyNotRunning(ctx, tx, e)
	}))
}

// Execution finds one by its sandbox and id, or fault.ExecutionNotFound.
func (s *Store) Execution(ctx context.Context, sandbox, id string) (execution.Execution, error) {
	e, err := scanExecution(s.read.QueryRowContext(ctx, selectExecution+" WHERE id = $1 AND sandbox = $2", id, sandbox))
	if errors.Is(err, sql.ErrNoRows) {
		err = execution.NotFound()
	}
	return e, s.explain("read execution", err)
}

// Executions returns one page of a sandbox's; see page for the cursors.
func (s *Store) Executions(ctx context.Context, q execution.Query) (execution.Page, error) {
	var f filter
	f.add("sandbox = ?", q.Sandbox)
	data, more, err := page(ctx, s.read, selectExecution, f, q.StartingAfter, q.EndingBefore, q.Limit, scanExecution)
	return execution.Page{Data: data, HasMore: more}, s.explain("list executions", err)
}

// RunningExecutions returns all that have not ended, oldest first.
func (s *Store) RunningExecutions(ctx context.Context) ([]execution.Execution, error) {
	running, err := collect(ctx, s.read, selectExecution+" WHERE status = 'running' ORDER BY id", nil, scanExecution)
	return running, s.explain("list running executions", err)
}
