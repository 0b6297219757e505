package sqlstore

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/testkit/pgtest"
)

func TestFullDisk(t *testing.T) {
	onSmallDisk(t, "16384", func(t *testing.T, disk string) {
		path := filepath.Join(disk, "db")
		kept := meetFullDisk(t, openTest(t, path), disk)
		expectKept(t, openTest(t, path), kept)
	})
}

func TestPostgresFullDisk(t *testing.T) {
	onSmallDisk(t, "16384", func(t *testing.T, disk string) {
		server := pgtest.Start(t)
		server.Own(t, disk)
		server.Admin(t, "CREATE TABLESPACE small LOCATION '"+disk+"'", "GRANT CREATE ON TABLESPACE small TO "+pgtest.User)
		s := openTest(t, server.Database(t))
		// The log of changes has another disk: where it cannot grow, the server ends
		// itself, which is the outage of TestPostgresOutage.
		if _, err := s.write.ExecContext(t.Context(), "ALTER TABLE sandboxes SET TABLESPACE small"); err != nil {
			t.Fatal(err)
		}
		expectKept(t, s, meetFullDisk(t, s, disk))
	})
}

// meetFullDisk fills the disk while the store is written to, frees it again, and
// returns what was acknowledged.
func meetFullDisk(t *testing.T, s *Store, disk string) (kept []string) {
	t.Helper()
	insert := func() error {
		sb := newSandbox()
		sb.Tags = map[string]string{"filler": strings.Repeat("x", 200)}
		err := s.InsertSandbox(t.Context(), sb)
		if err == nil {
			kept = append(kept, sb.ID)
		}
		return err
	}
	for range 20 {
		if err := insert(); err != nil {
			t.Fatal(err)
		}
	}
	undo := fill(t, disk)
	var err error
	for err == nil { // what is reserved in the file is still there to be used
		err = insert()
	}
	for range 3 {
		expectAdvice(t, err, "insert sandbox: ", s.name, "disk is full", "nothing that was acknowledged is lost")
		expectOutage(t, err)
		expectKept(t, s, kept) // reads go on
		err = insert()
	}
	undo()
	for range 50 {
		if err := insert(); err != nil {
			t.Fatalf("after space was freed: %v", err)
		}
	}
	return kept
}

// expectOutage wants an error that a caller may repeat and that tells it nothing
// of the database.
func expectOutage(t *testing.T, err error) {
	t.Helper()
	if !fault.Is(err, fault.QueueUnreachable) {
		t.Fatalf("no outage: %v", err)
	}
	if message := fault.From(err).Message; message != outage {
		t.Errorf("a caller is told %q", message)
	}
}

// expectKept wants exactly these sandboxes to live.
func expectKept(t *testing.T, s *Store, ids []string) {
	t.Helper()
	live, err := s.LiveSandboxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(live) != len(ids) {
		t.Fatalf("%d rows, %d were acknowledged", len(live), len(ids))
	}
	there := map[string]sandbox.Sandbox{}
	for _, sb := range live {
		there[sb.ID] = sb
	}
	for _, id := range ids {
		if there[id].ID == "" {
			t.Fatalf("%s was acknowledged and is lost", id)
		}
	}
}
