package sqlstore_test

import (
	"path/filepath"
	"testing"

	"github.com/microvmd/microvm/internal/sqlstore"
	"github.com/microvmd/microvm/internal/testkit/storetest"
)

func openAt(t *testing.T, dir string) storetest.Store {
	t.Helper()
	s, err := sqlstore.Open(t.Context(), filepath.Join(dir, "microvm.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Store { return openAt(t, t.TempDir()) })
}

func TestCrash(t *testing.T) { storetest.Crash(t, openAt) }
