package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
	info, err := files.Write(t.Context(), id, "deep/er/data", 0o640, bytes.NewReader(content))
	if err != nil || info.Size != int64(len(content)) || info.Mode != "0640" || info.Path != "/workspace/deep/er/data" {
		t.Fatalf("%+v %v", info, err)
	}
	body, size, err := files.Read(t.Context(), id, "/workspace/deep/er/data")
	if err != nil {
		t.Fatal(err)
	}
	back, err := io.ReadAll(body)
	if err != nil || !bytes.Equal(back, content) || size != int64(len(content)) {
		t.Fatalf("%d of %d bytes: %v", len(back), size, err)
	}
	if err := body.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := files.Read(t.Context(), id, "none"); !fault.Is(err, fault.FileNotFound) {
		t.Fatalf("a file that is not there: %v", err)
	}
	if _, _, err := files.Read(t.Context(), id, "/workspace/deep"); !fault.Is(err, fault.ParameterInvalid) {
		t.Fatalf("a directory: %v", err)
	}
	broken := errors.New("the caller went away")
	if _, err := files.Write(t.Context(), id, "half", 0o644, io.MultiReader(strings.NewReader("half"), failing{broken})); !errors.Is(err, broken) {
		t.Fatalf("a source that fails: %v", err)
	}
	if _, _, err := files.Read(t.Context(), id, "half"); !fault.Is(err, fault.FileNotFound) {
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

func TestWrongPathsAndModes(t *testing.T) {
	files, _, id := withFiles(t, testkit.ConfiguredAgent())
	for name, path := range map[string]string{"empty": "", "NUL": "a\x00b", "long": strings.Repeat("p", guestwire.MaxPath+1)} {
		var got *fault.Error
		if _, err := files.Write(t.Context(), id, path, 0o644, strings.NewReader("")); !errors.As(err, &got) || got.Param != "path" {
			t.Errorf("%s: %v", name, err)
		}
		if _, _, err := files.Read(t.Context(), id, path); !errors.As(err, &got) || got.Param != "path" {
			t.Errorf("%s: %v", name, err)
		}
	}
	var got *fault.Error
	if _, err := files.Write(t.Context(), id, "x", 0o1777, strings.NewReader("")); !errors.As(err, &got) || got.Param != "mode" {
		t.Errorf("mode: %v", err)
	}
}

// TestATransferThatStandsStillEnds: a guest that takes an upload and never
// answers holds it for StepTimeout and no longer.
func TestATransferThatStandsStillEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux := http.NewServeMux()
		mux.HandleFunc(guestwire.RouteConfigure, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"generation":1}`))
		})
		mux.HandleFunc(guestwire.RouteWriteFile, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		files, _, id := withFiles(t, testkit.HandlerAgent(mux))
		began := time.Now()
		_, err := files.Write(t.Context(), id, "x", 0o644, strings.NewReader("content"))
		if !fault.Is(err, fault.GuestUnreachable) || time.Since(began) != limits.StepTimeout {
			t.Fatalf("%v after %s", err, time.Since(began))
		}
	})
}
