package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/sandbox"
)

const (
	sandboxColumns = `id, image, name, tags, vcpus, mem_mib, expires_ms, deadline_ms, host_boot, idle_ms,
	state, stop_reason, reason, boot, slot, created_ms, stopped_ms`

	selectSandbox = "SELECT " + sandboxColumns + ", env FROM sandboxes"
	// A list carries no environments: a page of large ones would be megabytes
	// that nobody asked for.
	listSandbox = "SELECT " + sandboxColumns + ", '' FROM sandboxes"
)

func scanSandbox(r row) (sandbox.Sandbox, error) {
	var s sandbox.Sandbox
	var tags string
	var expires, deadline, idle, created, stopped int64
	if err := r.Scan(&s.ID, &s.Image, &s.Name, &tags, &s.VCPUs, &s.MemMiB, &expires, &deadline, &s.HostBoot, &idle,
		&s.State, &s.StopReason, &s.Reason, &s.Boot, &s.Slot, &created, &stopped, &s.Env); err != nil {
		return s, err
	}
	if tags != "{}" {
		if err := json.Unmarshal([]byte(tags), &s.Tags); err != nil {
			return s, fmt.Errorf("tags of %s: %w", s.ID, err)
		}
	}
	s.Expires, s.Deadline, s.Idle = fromMillis(expires), time.Duration(deadline)*time.Millisecond, time.Duration(idle)*time.Millisecond
	s.Created, s.Stopped = fromMillis(created), fromMillis(stopped)
	return s, nil
}

// checkSandbox refuses what would be a lie in the table.
func checkSandbox(s sandbox.Sandbox) error {
	switch {
	case s.ID == "" || s.State == "":
		return errors.New("a sandbox needs an id and a state")
	case (s.State == sandbox.Stopped) == s.Stopped.IsZero():
		return fmt.Errorf("%s is %s: a time of stopping belongs to a stopped sandbox, and only to it", s.ID, s.State)
	case s.State == sandbox.Stopped && s.Env != "":
		return fmt.Errorf("%s is %s: an environment belongs to a sandbox that can still use it", s.ID, s.State)
	}
	return nil
}

// InsertSandbox adds a new one. A name that a sandbox that is not stopped holds
// is a fault.ResourceAlreadyExists with Param "name".
func (s *Store) InsertSandbox(ctx context.Context, sb sandbox.Sandbox) error {
	const op = "insert sandbox"
	if err := checkSandbox(sb); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	tags := []byte("{}")
	if len(sb.Tags) > 0 {
		var err error
		if tags, err = json.Marshal(sb.Tags); err != nil {
			return fmt.Errorf("%s: tags: %w", op, err)
		}
	}
	return s.explain(op, s.insert(ctx, synced, func(tx *sql.Tx) error {
		// DO NOTHING and a count tell a conflict in both engines without reading
		// the driver's error. It ends: each turn, somebody freed the name after
		// the insert met it.
		for inserted := int64(0); inserted == 0; {
			var err error
			inserted, err = affected(tx.ExecContext(ctx, `INSERT INTO sandboxes (id, image, name, tags, vcpus, mem_mib, expires_ms, deadline_ms,
				host_boot, idle_ms, state, stop_reason, reason, boot, slot, created_ms, stopped_ms, env)
				VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
				ON CONFLICT DO NOTHING`,
				sb.ID, sb.Image, sb.Name, string(tags), sb.VCPUs, sb.MemMiB, toMillis(sb.Expires), sb.Deadline.Milliseconds(),
				sb.HostBoot, sb.Idle.Milliseconds(), sb.State, sb.StopReason, sb.Reason, sb.Boot, sb.Slot, toMillis(sb.Created), toMillis(sb.Stopped), sb.Env))
			if err == nil && inserted == 0 {
				err = taken(ctx, tx, sb)
			}
			if err != nil {
				return err
			}
		}
		for key, value := range sb.Tags {
			if _, err := tx.ExecContext(ctx, "INSERT INTO sandbox_tags (sandbox, tag_key, tag_value) VALUES ($1, $2, $3)",
				sb.ID, key, value); err != nil {
				return err
			}
		}
		return nil
	}))
}

// taken says why an insert met a conflict; nil if there is none any more.
func taken(ctx context.Context, tx *sql.Tx, sb sandbox.Sandbox) error {
	var holder string
	err := tx.QueryRowContext(ctx, "SELECT id FROM sandboxes WHERE id = $1 OR name = $2 AND name <> '' AND state <> 'stopped'",
		sb.ID, sb.Name).Scan(&holder)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return err
	case holder == sb.ID:
		return fmt.Errorf("%s %w", sb.ID, errThere)
	}
	f := fault.New(fault.ResourceAlreadyExists, "the name %q belongs to sandbox %s; use that one, delete it, or choose another name", sb.Name, holder)
	f.Param = "name"
	return f
}

// UpdateSandbox stores what can change: Expires, Deadline, HostBoot, State,
// StopReason, Reason, Boot, Slot, Stopped. The other fields are fixed by InsertSandbox
// and not read here, but for Env, which is erased with the stop.
// A stopped sandbox stays as it is (fault.SandboxNotRunning), and one that was
// running never starts again.
func (s *Store) UpdateSandbox(ctx context.Context, sb sandbox.Sandbox) error {
	const op = "update sandbox"
	if err := checkSandbox(sb); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return s.explain(op, s.transaction(ctx, synced, func(tx *sql.Tx) error {
		n, err := affected(tx.ExecContext(ctx, `UPDATE sandboxes SET expires_ms = $2, state = $3, stop_reason = $4, reason = $5, boot = $6,
			slot = $7, stopped_ms = $8, deadline_ms = $9, host_boot = $10, env = CASE WHEN $3 = 'stopped' THEN '' ELSE env END
			WHERE id = $1 AND state <> 'stopped' AND ($3 <> 'starting' OR state = 'starting')`,
			sb.ID, toMillis(sb.Expires), sb.State, sb.StopReason, sb.Reason, sb.Boot, sb.Slot, toMillis(sb.Stopped),
			sb.Deadline.Milliseconds(), sb.HostBoot))
		if err != nil || n == 1 {
			return err
		}
		var state sandbox.State
		err = tx.QueryRowContext(ctx, "SELECT state FROM sandboxes WHERE id = $1", sb.ID).Scan(&state)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return sandbox.NotFound()
		case err != nil:
			return err
		case state == sandbox.Stopped:
			return fault.New(fault.SandboxNotRunning, "sandbox %s is stopped and stays so; create another one", sb.ID)
		}
		return fmt.Errorf("%s is %s and cannot be %s", sb.ID, state, sb.State)
	}))
}

// Sandbox finds one by id, or fault.SandboxNotFound.
func (s *Store) Sandbox(ctx context.Context, id string) (sandbox.Sandbox, error) {
	sb, err := scanSandbox(s.read.QueryRowContext(ctx, selectSandbox+" WHERE id = $1", id))
	if errors.Is(err, sql.ErrNoRows) {
		err = sandbox.NotFound()
	}
	return sb, s.explain("read sandbox", err)
}

// Sandboxes returns one page, without environments; see page for the cursors.
func (s *Store) Sandboxes(ctx context.Context, q sandbox.Query) (sandbox.Page, error) {
	var f filter
	if q.State != "" {
		f.add("state = ?", q.State)
	}
	if q.Name != "" {
		f.add("name = ?", q.Name)
	}
	if q.TagKey != "" {
		f.add("id IN (SELECT sandbox FROM sandbox_tags WHERE tag_key = ? AND tag_value = ?)", q.TagKey, q.TagValue)
	}
	data, more, err := page(ctx, s.read, listSandbox, f, q.StartingAfter, q.EndingBefore, q.Limit, scanSandbox)
	return sandbox.Page{Data: data, HasMore: more}, s.explain("list sandboxes", err)
}

// LiveSandboxes returns all that are not stopped, oldest first.
func (s *Store) LiveSandboxes(ctx context.Context) ([]sandbox.Sandbox, error) {
	live, err := collect(ctx, s.read, selectSandbox+" WHERE state <> 'stopped' ORDER BY id", nil, scanSandbox)
	return live, s.explain("list live sandboxes", err)
}

// DeleteStopped removes the sandboxes that stopped before a time, with their
// executions, and returns their ids: what else is kept of them may go too.
func (s *Store) DeleteStopped(ctx context.Context, before time.Time) (ids []string, err error) {
	ids, err = collect(ctx, s.write, "DELETE FROM sandboxes WHERE state = 'stopped' AND stopped_ms < $1 RETURNING id",
		[]any{before.UnixMilli()}, func(r row) (id string, err error) { return id, r.Scan(&id) })
	return ids, s.explain("delete stopped sandboxes", err)
}

func affected(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
