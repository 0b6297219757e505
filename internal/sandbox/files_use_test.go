package sandbox_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/sandbox"
)

// TestFileCallsAreUse: a sandbox is not idle while a watch or a transfer is open,
// however little moves, and is again when they have ended.
func TestFileCallsAreUse(t *testing.T) {
	for name, hold := range map[string]func(*testing.T, *sandbox.Files, string, time.Duration){
		"a watch": func(t *testing.T, files *sandbox.Files, id string, long time.Duration) {
			began := time.Now()
			err := files.Watch(t.Context(), id, "/x", true, func(guestwire.Change) error {
				if time.Since(began) >= long {
					return errLeft
				}
				return nil
			})
			if err != errLeft { //nolint:errorlint // it comes back as it is
				t.Error(err)
			}
		},
		"a download that nobody reads": func(t *testing.T, files *sandbox.Files, id string, long time.Duration) {
			body, err := files.ReadArchive(t.Context(), id, "/x", false, "")
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(long)
			_ = body.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				agent := &fileAgent{answer: func(w http.ResponseWriter, r *http.Request) {
					_, _ = fmt.Fprint(w, "{\"path\":\"L3g=\"}\n")
					for r.Context().Err() == nil {
						if err := http.NewResponseController(w).Flush(); err != nil {
							return
						}
						time.Sleep(limits.StepTimeout / 2)
						_, _ = fmt.Fprint(w, "\n")
					}
				}}
				files, m, first := withFiles(t, agent.factory())
				if _, err := m.Delete(t.Context(), first); err != nil {
					t.Fatal(err)
				}
				sb, err := m.Create(t.Context(), sandbox.Spec{Image: "python", TTL: time.Hour, Idle: time.Minute})
				if err != nil {
					t.Fatal(err)
				}
				state := func() sandbox.State {
					synctest.Wait()
					now, err := m.Get(t.Context(), sb.ID)
					if err != nil {
						t.Fatal(err)
					}
					return now.State
				}
				hold(t, files, sb.ID, 10*time.Minute)
				if now := state(); now != sandbox.Running {
					t.Fatalf("it is %s while it is used", now)
				}
				time.Sleep(55 * time.Second)
				if now := state(); now != sandbox.Running {
					t.Errorf("it is %s too early", now)
				}
				time.Sleep(30 * time.Second)
				if now := state(); now != sandbox.Stopped {
					t.Errorf("it is %s although nobody uses it", now)
				}
			})
		})
	}
}
