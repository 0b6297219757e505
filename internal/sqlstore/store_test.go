package sqlstore_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/microvmd/microvm/internal/sqlstore"
	"github.com/microvmd/microvm/internal/testkit/pgtest"
	"github.com/microvmd/microvm/internal/testkit/storetest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func open(t *testing.T, where string) storetest.Store {
	t.Helper()
	s, err := sqlstore.Open(t.Context(), where)
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

func openFile(t *testing.T, dir string) storetest.Store {
	return open(t, filepath.Join(dir, "microvm.db"))
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Store { return openFile(t, t.TempDir()) })
}

func TestPostgresConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Store { return open(t, pgtest.Shared(t).Database(t)) })
}

func TestCrash(t *testing.T) { storetest.Crash(t, openFile) }

func TestPostgresCrash(t *testing.T) {
	const ours = "MICROVM_SQLSTORE_DATABASE"
	if os.Getenv(ours) == "" { // else this is the child, which writes to its parent's
		t.Setenv(ours, pgtest.Shared(t).Database(t))
	}
	storetest.Crash(t, func(t *testing.T, _ string) storetest.Store { return open(t, os.Getenv(ours)) })
}
