package sqlstore

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/ident"
	"github.com/microvmd/microvm/internal/sandbox"
)

func newSandbox() sandbox.Sandbox {
	return sandbox.Sandbox{ID: ident.New(ident.Sandbox), Image: "python", State: sandbox.Starting, Created: time.Now()}
}

func expectAdvice(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
}

func openTest(t *testing.T, path string) *Store {
	t.Helper()
	s, err := open(t.Context(), path, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestFileIsPrivateAndNamedAsAsked(t *testing.T) {
	// Characters that mean something in a DSN, and a relative path.
	t.Chdir(t.TempDir())
	for _, name := range []string{"plain.db", "a b?mode=memory&x=%41#f.db", "file:x.db", ":memory:", "ü.db"} {
		s := openTest(t, name)
		if err := s.InsertSandbox(t.Context(), newSandbox()); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{name, name + "-wal", name + "-shm"} {
			info, err := os.Stat(file)
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v", file, info.Mode())
			}
		}
	}
	if files, _ := os.ReadDir("."); len(files) != 15 {
		t.Errorf("files beside the stores: %v", files)
	}
}

func TestSettingsHold(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "db"))
	for _, c := range []struct {
		pool         *sql.DB
		pragma, want string
	}{
		{s.write, "journal_mode", "wal"},
		{s.write, "synchronous", "2"}, // FULL
		{s.write, "foreign_keys", "1"},
		{s.write, "busy_timeout", "1000"},
		{s.write, "query_only", "0"},
		{s.read, "query_only", "1"},
		{s.read, "journal_mode", "wal"},
	} {
		var got string
		if err := c.pool.QueryRowContext(t.Context(), "PRAGMA "+c.pragma).Scan(&got); err != nil || got != c.want {
			t.Errorf("%s is %s %v, want %s", c.pragma, got, err, c.want)
		}
	}
	if _, err := s.read.ExecContext(t.Context(), "DELETE FROM sandboxes"); err == nil {
		t.Error("a reader wrote")
	}
}

// TestLevels: each write has its own level, whatever the one before had.
func TestLevels(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "db"))
	sb := newSandbox()
	e := execution.Execution{ID: ident.New(ident.Execution), Sandbox: sb.ID, Status: execution.Running, Created: time.Now()}
	ended := e
	ended.Status, ended.Finished = execution.Vanished, time.Now()
	const full, normal = "2", "1"
	for i, step := range []struct {
		write func() error
		want  string
	}{
		{func() error { return s.InsertSandbox(t.Context(), sb) }, full},
		{func() error { return s.InsertExecution(t.Context(), e) }, normal},
		{func() error { return s.UpdateSandbox(t.Context(), sb) }, full},
		{func() error { return s.FinishExecution(t.Context(), ended) }, normal},
		{func() error { return s.InsertKey(t.Context(), Key{ID: "key_1"}) }, full},
	} {
		if err := step.write(); err != nil {
			t.Fatal(err)
		}
		var got string
		if err := s.write.QueryRowContext(t.Context(), "PRAGMA synchronous").Scan(&got); err != nil || got != step.want {
			t.Errorf("write %d had synchronous %s, %v, want %s", i, got, err, step.want)
		}
	}
}

func TestOpenRefusals(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	foreign := write("foreign", bytes.Repeat([]byte("no database "), 1000))
	_, err := Open(t.Context(), foreign)
	expectAdvice(t, err, "open store: ", foreign, "damaged", "backup")

	_, err = Open(t.Context(), dir)
	expectAdvice(t, err, "open store: ", dir)
	missing := filepath.Join(dir, "none", "db")
	_, err = Open(t.Context(), missing)
	expectAdvice(t, err, "open store: ", missing)
	if !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestDamagedPageIsFoundAtOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		sb := newSandbox()
		sb.Name = fmt.Sprint("name", i)
		if err := s.InsertSandbox(t.Context(), sb); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const page = 4096
	pages := len(whole) / page
	found := 0
	for i := 1; i < pages; i++ { // the first page's loss is TestOpenRefusals' foreign file
		broken := bytes.Clone(whole)
		copy(broken[i*page:], bytes.Repeat([]byte{0xa5}, page))
		if err := os.WriteFile(path, broken, 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err = Open(t.Context(), path); err != nil {
			expectAdvice(t, err, "open store: ", path, "damaged", "backup")
			found++
		} else if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if found != pages-1 {
		t.Errorf("%d of %d damaged pages were found", found, pages-1)
	}
	// And the copy that was put back works.
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	page1, err := openTest(t, path).Sandboxes(t.Context(), sandbox.Query{Limit: 100})
	if err != nil || len(page1.Data) != 100 {
		t.Fatal(len(page1.Data), err)
	}
}

// TestLockedFile meets another process that holds the file.
func TestLockedFile(t *testing.T) {
	if purpose := os.Getenv(childEnv); purpose != "" {
		holdLock(t, purpose)
		return
	}
	path := filepath.Join(t.TempDir(), "db")
	s := openTest(t, path)
	release := lockedByAnother(t, "NORMAL "+path)
	if _, err := s.write.ExecContext(t.Context(), "PRAGMA busy_timeout = 1"); err != nil {
		t.Fatal(err)
	}
	err := s.InsertSandbox(t.Context(), newSandbox())
	expectAdvice(t, err, "insert sandbox: ", path, "locked by another process")
	expectOutage(t, err)
	if _, err := s.LiveSandboxes(t.Context()); err != nil {
		t.Errorf("a read waits for a foreign writer: %v", err)
	}
	release()
	if err := s.InsertSandbox(t.Context(), newSandbox()); err != nil {
		t.Errorf("after the lock is gone: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	release = lockedByAnother(t, "EXCLUSIVE "+path)
	_, err = open(t.Context(), path, time.Millisecond)
	expectAdvice(t, err, "open store: ", path, "locked by another process")
	release()
	openTest(t, path)
}

// lockedByAnother starts a child that holds a lock until it is released.
func lockedByAnother(t *testing.T, purpose string) (release func()) {
	t.Helper()
	child := again(t, purpose)
	hold, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	said, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(said).ReadString('\n')
	if err != nil || line != "held\n" {
		t.Fatalf("the other process said %q, %v", line, err)
	}
	return func() {
		t.Helper()
		_ = hold.Close()
		if err := child.Wait(); err != nil {
			t.Fatal(err)
		}
	}
}

// holdLock is the child: it holds the lock until its standard input ends.
func holdLock(t *testing.T, purpose string) {
	mode, path, _ := strings.Cut(purpose, " ")
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(t.Context(), "PRAGMA locking_mode = "+mode+"; BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	fmt.Println("held")
	_, _ = io.ReadAll(os.Stdin)
}

// TestDamageWhileOpen overwrites the file under an open store.
func TestDamageWhileOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	s := openTest(t, path)
	kept := make([]string, 200)
	for i := range kept {
		sb := newSandbox()
		if err := s.InsertSandbox(t.Context(), sb); err != nil {
			t.Fatal(err)
		}
		kept[i] = sb.ID
	}
	if err := s.Close(); err != nil { // all is in the file, nothing in its log
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s = openTest(t, path)
	broken := bytes.Clone(whole)
	for i := 4096; i < len(broken); i++ { // the first page says that it is a database
		broken[i] = 0xa5
	}
	overwrite := func(data []byte) {
		t.Helper()
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = file.Close() }()
		if _, err := file.WriteAt(data, 0); err != nil {
			t.Fatal(err)
		}
	}
	overwrite(broken)
	_, err = s.LiveSandboxes(t.Context())
	expectAdvice(t, err, "list live sandboxes: ", path, "damaged", "backup")
	if fault.From(err).Code != fault.InternalError {
		t.Errorf("a repeat cannot help: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	overwrite(whole) // the backup
	expectKept(t, openTest(t, path), kept)
}

func TestClosedStoreSaysSo(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "db"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatalf("second close: %v", err)
	}
	if _, err := s.Sandbox(context.Background(), "sb_1"); err == nil {
		t.Fatal("a closed store answered")
	}
}

func BenchmarkInsertSandbox(b *testing.B) {
	s, err := Open(b.Context(), filepath.Join(b.TempDir(), "db"))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	for b.Loop() {
		if err := s.InsertSandbox(b.Context(), newSandbox()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkExecution is what the store costs each execution: its row and its end.
func BenchmarkExecution(b *testing.B) {
	s, err := Open(b.Context(), filepath.Join(b.TempDir(), "db"))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	sb := newSandbox()
	if err := s.InsertSandbox(b.Context(), sb); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		e := execution.Execution{ID: ident.New(ident.Execution), Sandbox: sb.ID, Cmd: "true", Status: execution.Running, Created: time.Now()}
		if err := s.InsertExecution(b.Context(), e); err != nil {
			b.Fatal(err)
		}
		code := 0
		e.Status, e.ExitCode, e.Finished = execution.Exited, &code, time.Now()
		if err := s.FinishExecution(b.Context(), e); err != nil {
			b.Fatal(err)
		}
	}
}
