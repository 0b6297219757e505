package sandbox_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/sqlstore"
	"github.com/microvmd/microvm/internal/testkit"
)

// fullStore refuses endings, as a full disk does.
type fullStore struct {
	*sqlstore.Store
	full atomic.Bool
}

func (s *fullStore) UpdateSandbox(ctx context.Context, sb sandbox.Sandbox) error {
	if s.full.Load() && sb.State == sandbox.Stopped {
		return errors.New("disk is full")
	}
	return s.Store.UpdateSandbox(ctx, sb)
}

// TestAnEndingThatTheStoreRefusesIsStoredLater: the sandbox is gone from the
// host at once and its slot is free; its row must not say running until the
// daemon starts again, and its name must come back.
func TestAnEndingThatTheStoreRefusesIsStoredLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, err := sqlstore.Open(t.Context(), filepath.Join(t.TempDir(), "db"))
		if err != nil {
			t.Fatal(err)
		}
		defer inner.Close()
		store := &fullStore{Store: inner}
		host := testkit.NewHost(testkit.ConfiguredAgent())
		one := limits
		one.Slots = 1
		m := manager(t, host, store, one)
		sb, err := m.Create(t.Context(), sandbox.Spec{Image: "python", Name: "mine"})
		if err != nil {
			t.Fatal(err)
		}
		store.full.Store(true)
		gone, err := m.Delete(t.Context(), sb.ID)
		if err != nil || gone.State != sandbox.Stopped || len(host.Left()) > 0 {
			t.Fatalf("%+v %v, left %v", gone, err, host.Left())
		}
		if got, err := m.Get(t.Context(), sb.ID); err != nil || got.State != sandbox.Stopped {
			t.Errorf("while the store is full: %+v %v", got, err)
		}
		if again, err := m.Delete(t.Context(), sb.ID); err != nil || again.Reason != sandbox.ReasonDeleted {
			t.Errorf("a second delete: %+v %v", again, err)
		}
		store.full.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got, err := inner.Sandbox(t.Context(), sb.ID); err != nil || got.Reason != sandbox.ReasonDeleted {
			t.Fatalf("stored: %+v %v", got, err)
		}
		other, err := m.Create(t.Context(), sandbox.Spec{Image: "python", Name: "mine"})
		if err != nil {
			t.Fatal(err)
		}
		// A store that stays full does not keep the daemon from its end.
		store.full.Store(true)
		if _, err := m.Delete(t.Context(), other.ID); err != nil {
			t.Fatal(err)
		}
		if err := m.Close(t.Context(), true); err != nil {
			t.Error(err)
		}
	})
}
