package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/sqlstore"
	"github.com/microvmd/microvm/internal/testkit"
)

// withFiles has one running sandbox whose agent is made by agent.
func withFiles(t *testing.T, agent testkit.AgentFactory) (*sandbox.Files, *sandbox.Manager, string) {
	t.Helper()
	store, err := sqlstore.Open(t.Context(), filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	host := testkit.NewHost(agent)
	m := manager(t, host, store, limits)
	t.Cleanup(func() {
		if err := errors.Join(m.Close(context.Background(), true), store.Close()); err != nil {
			t.Error(err)
		}
	})
	sb, err := m.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return sandbox.NewFiles(m), m, sb.ID
}

func TestFilesComeBackAsTheyWere(t *testing.T) {
	files, m, id := withFiles(t, testkit.GuestAgent(t.TempDir()))
	content := bytes.Repeat([]byte("0123456789abcde\n"), 1<<16) // 1 MiB
	entry, err := files.Write(t.Context(), id, "deep/er/data", 0o640, bytes.NewReader(content))
	if err != nil || entry.Size != int64(len(content)) || entry.Mode != "0640" || entry.Path != "/workspace/deep/er/data" {
		t.Fatalf("%+v %v", entry, err)
	}
	for part, want := range map[guestwire.Range][]byte{
		guestwire.Whole:               content,
		{Offset: 16, Length: 32}:      content[16:48],
		{Offset: -16, Length: -1}:     content[len(content)-16:],
		{Offset: 1<<20 - 1}:           {},
		{Offset: 1 << 19, Length: -1}: content[1<<19:],
	} {
		body, info, err := files.Read(t.Context(), id, "/workspace/deep/er/data", part)
		if err != nil {
			t.Fatal(err)
		}
		back, err := io.ReadAll(body)
		if err != nil || !bytes.Equal(back, want) || info.Length != int64(len(want)) || info.Size != int64(len(content)) {
			t.Fatalf("%+v: %d of %d bytes: %v", part, len(back), len(want), err)
		}
		if err := body.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := files.Read(t.Context(), id, "deep/er/data", guestwire.Range{Offset: 1 << 20, Length: -1}); !fault.Is(err, fault.RangeInvalid) {
		t.Fatalf("behind the end: %v", err)
	}
	if _, _, err := files.Read(t.Context(), id, "none", guestwire.Whole); !fault.Is(err, fault.FileNotFound) {
		t.Fatalf("a file that is not there: %v", err)
	}
	if _, _, err := files.Read(t.Context(), id, "/workspace/deep", guestwire.Whole); !fault.Is(err, fault.ParameterInvalid) {
		t.Fatalf("a directory: %v", err)
	}
	broken := errors.New("the caller went away")
	if _, err := files.Write(t.Context(), id, "half", 0o644, io.MultiReader(strings.NewReader("half"), failing{broken})); !errors.Is(err, broken) {
		t.Fatalf("a source that fails: %v", err)
	}
	if _, _, err := files.Read(t.Context(), id, "half", guestwire.Whole); !fault.Is(err, fault.FileNotFound) {
		t.Fatalf("half a file is left: %v", err)
	}
	if _, err := m.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := files.Write(t.Context(), id, "late", 0o644, strings.NewReader("")); !fault.Is(err, fault.SandboxNotRunning) {
		t.Fatalf("after the end: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
