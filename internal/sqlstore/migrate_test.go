package sqlstore

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/testkit/pgtest"
)

// atSchema makes a database of an earlier schema with the rows of its time.
func atSchema(t *testing.T, where string, version int64) {
	t.Helper()
	s, err := connect(where, busyTimeout)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.engine.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	provider, err := s.migrations()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.UpTo(t.Context(), version); err != nil {
		t.Fatal(err)
	}
	rows, err := os.ReadFile(filepath.Join("testdata", fmt.Sprintf("%05d.sql", version)))
	if err != nil {
		t.Fatalf("each schema needs the rows that a store of it has: %v", err)
	}
	if _, err := s.write.ExecContext(t.Context(), string(rows)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestMigrateFromEachSchema(t *testing.T) {
	migrateFromEach(t, func(t *testing.T) string { return filepath.Join(t.TempDir(), "db") })
}

func TestPostgresMigrateFromEachSchema(t *testing.T) {
	migrateFromEach(t, func(t *testing.T) string { return pgtest.Shared(t).Database(t) })
}

// migrateFromEach opens a store of every schema there was. Each testdata file
// holds the same things in the words of its schema, as far as it has them, so that
// one set of expectations serves all.
func migrateFromEach(t *testing.T, empty func(t *testing.T) (where string)) {
	sources, err := fs.Glob(migrationFiles, "migrations/*.sql")
	if err != nil || len(sources) == 0 {
		t.Fatal(sources, err)
	}
	for i, source := range sources {
		version := int64(i + 1)
		if !strings.HasPrefix(filepath.Base(source), fmt.Sprintf("%05d_", version)) {
			t.Fatalf("migration %d is %s: numbers have no holes", version, source)
		}
		text, err := migrationFiles.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "+goose Down") {
			t.Errorf("%s has a way back; migrations go forward only", source)
		}
		t.Run(fmt.Sprint("from", version), func(t *testing.T) {
			where := empty(t)
			atSchema(t, where, version)
			for range 2 { // the second time there is nothing to do
				s, err := Open(t.Context(), where)
				if err != nil {
					t.Fatal(err)
				}
				expectOldRows(t, s, version)
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func expectOldRows(t *testing.T, s *Store, version int64) {
	t.Helper()
	page, err := s.Sandboxes(t.Context(), sandbox.Query{Limit: 10})
	if err != nil || len(page.Data) != 2 {
		t.Fatalf("%+v %v", page, err)
	}
	stopped, live := page.Data[0], page.Data[1]
	if live.Name != "old" || live.Tags["team"] != "core" || live.MemMiB != 512 || live.State != sandbox.Running ||
		live.Expires.Sub(live.Created).Minutes() != 15 || live.Created.UnixMilli() != 1750000000000 {
		t.Errorf("live: %+v", live)
	}
	if stopped.StopReason != sandbox.StopExpired || stopped.Stopped.UnixMilli() != 1750000060001 {
		t.Errorf("stopped: %+v", stopped)
	}
	for id, want := range map[string]string{live.ID: "", stopped.ID: ""} {
		if id == live.ID && version >= 3 {
			want = "v1.sealed"
		}
		if sb, err := s.Sandbox(t.Context(), id); err != nil || sb.Env != want {
			t.Errorf("environment of %s is %q, want %q: %v", id, sb.Env, want, err)
		}
	}
	running, err := s.RunningExecutions(t.Context())
	if err != nil || len(running) != 1 || running[0].Args[0] != "60" || running[0].ExitCode != nil {
		t.Errorf("running: %+v %v", running, err)
	}
	done, err := s.Execution(t.Context(), stopped.ID, "exe_01K00000000000000000000004")
	if err != nil || done.Status != execution.Exited || *done.ExitCode != 0 || !done.OOMKilled || done.User != "root" {
		t.Errorf("done: %+v %v", done, err)
	}
	key, err := s.KeyByHash(t.Context(), [32]byte{0xff})
	if err != nil || key.Name != "admin" {
		t.Errorf("key: %+v %v", key, err)
	}
	taken := live
	taken.ID = "sb_01K00000000000000000000009"
	if err := s.InsertSandbox(t.Context(), taken); !fault.Is(err, fault.ResourceAlreadyExists) {
		t.Errorf("name of an old sandbox: %v", err)
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	refuseNewer(t, path, path)
}

func TestPostgresNewerSchemaIsRefused(t *testing.T) {
	where := pgtest.Shared(t).Database(t)
	refuseNewer(t, where, pgtest.Name(where))
}

func refuseNewer(t *testing.T, where, name string) {
	s, err := Open(t.Context(), where)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.write.ExecContext(t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, TRUE)"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), where)
	expectAdvice(t, err, name, "schema 99", "release")
}
