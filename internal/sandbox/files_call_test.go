package sandbox_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/sandbox"
)

// fileCalls is every call, each of which names the path "x".
var fileCalls = map[string]func(context.Context, *sandbox.Files, string, string) error{
	"read": func(ctx context.Context, f *sandbox.Files, id, path string) error {
		body, _, err := f.Read(ctx, id, path, guestwire.Whole)
		return errors.Join(err, drain(body))
	},
	"write": func(ctx context.Context, f *sandbox.Files, id, path string) error {
		_, err := f.Write(ctx, id, path, 0o644, strings.NewReader("content"))
		return err
	},
	"append": func(ctx context.Context, f *sandbox.Files, id, path string) error {
		_, err := f.Append(ctx, id, path, 0, 0o644, strings.NewReader("content"))
		return err
	},
	"batch": func(ctx context.Context, f *sandbox.Files, id, path string) error {
		_, err := f.WriteBatch(ctx, id, []guestwire.NewFile{{Path: path, Content: []byte("content")}})
		return err
	},
	"stat": func(ctx context.Context, f *sandbox.Files, id, path string) error {
		_, err := f.Stat(ctx, id, path)
		return err
	},
	"list": func(ctx context.Context, f *sandbox.Files, id, path string) error {
		_, _, err := f.List(ctx, id, guestwire.List{Path: path, Depth: 1, Limit: 1})
		return err
	},
	"make directory": func(ctx context.Context, f *sandbox.Files, id, path string) error {
		_, err := f.MakeDir(ctx, id, path, 0o755)
		return err
	},
	"move": func(ctx context.Context, f *sandbox.Files, id, path string) error {
		_, err := f.Move(ctx, id, guestwire.Move{From: path, To: "y"})
		return err
	},
	"move to": func(ctx context.Context, f *sandbox.Files, id, path string) error {
		_, err := f.Move(ctx, id, guestwire.Move{From: "y", To: path})
		return err
	},
	"remove": func(ctx context.Context, f *sandbox.Files, id, path string) error {
		_, err := f.Remove(ctx, id, path, true)
		return err
	},
	"read archive": func(ctx context.Context, f *sandbox.Files, id, path string) error {
		body, err := f.ReadArchive(ctx, id, path, false, "")
		return errors.Join(err, drain(body))
	},
	"write archive": func(ctx context.Context, f *sandbox.Files, id, path string) error {
		_, err := f.WriteArchive(ctx, id, path, false, false, strings.NewReader("content"))
		return err
	},
	"watch": func(ctx context.Context, f *sandbox.Files, id, path string) error {
		return f.Watch(ctx, id, path, true, func(guestwire.Change) error { return nil })
	},
}

func drain(body io.ReadCloser) error {
	if body == nil {
		return nil
	}
	_, err := io.Copy(io.Discard, body)
	return errors.Join(err, body.Close())
}

// pathParams is the name of the path of those calls whose path has another.
var pathParams = map[string]string{"batch": "files[0].path", "move": "from", "move to": "to"}

// TestWrongPathsCostTheGuestNothing: they are refused by name.
func TestWrongPathsCostTheGuestNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := &fileAgent{answer: refuse(guestwire.Failed, "")}
		files, _, id := withFiles(t, agent.factory())
		for call, do := range fileCalls {
			param := pathParams[call]
			if param == "" {
				param = "path"
			}
			for name, path := range map[string]string{"empty": "", "NUL": "a\x00b", "long": long} {
				var got *fault.Error
				if err := do(t.Context(), files, id, path); !errors.As(err, &got) || got.Param != param || got.Kind() != fault.Invalid {
					t.Errorf("%s, %s: %v", call, name, err)
				}
			}
		}
		if n := agent.calls.Load(); n > 0 {
			t.Errorf("the guest heard of %d calls", n)
		}
	})
}

// TestAnythingElseThatIsWrong costs the guest nothing either.
func TestAnythingElseThatIsWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := &fileAgent{answer: refuse(guestwire.Failed, "")}
		files, _, id := withFiles(t, agent.factory())
		none := strings.NewReader("")
		list := func(l guestwire.List) error { _, _, err := files.List(t.Context(), id, l); return err }
		for name, test := range map[string]struct {
			param string
			do    func() error
		}{
			"mode of a write":     {"mode", func() error { _, err := files.Write(t.Context(), id, "x", 0o1777, none); return err }},
			"mode of an append":   {"mode", func() error { _, err := files.Append(t.Context(), id, "x", 0, 0o1000, none); return err }},
			"mode of a directory": {"mode", func() error { _, err := files.MakeDir(t.Context(), id, "x", 0o2755); return err }},
			"append before 0":     {"append_at", func() error { _, err := files.Append(t.Context(), id, "x", -1, 0, none); return err }},
			"depth 0":             {"depth", func() error { return list(guestwire.List{Path: "x", Limit: 1}) }},
			"depth 33":            {"depth", func() error { return list(guestwire.List{Path: "x", Depth: 33, Limit: 1}) }},
			"limit 0":             {"limit", func() error { return list(guestwire.List{Path: "x", Depth: 1}) }},
			"limit 1001":          {"limit", func() error { return list(guestwire.List{Path: "x", Depth: 1, Limit: 1001}) }},
			"after of an archive": {"after", func() error { _, err := files.ReadArchive(t.Context(), id, "x", false, "../y"); return err }},
		} {
			var got *fault.Error
			if err := test.do(); !errors.As(err, &got) || got.Param != test.param || got.Code != fault.ParameterInvalid {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, after := range []string{".", "..", "../x", "a/../b", "a/", "a//b", "./a", "/workspace/y/a", "/workspace/x", "/workspace/x/", "/workspace/x//a", "/workspace/x/../y", "/", "a\x00", strings.Repeat("a", 4097)} {
			var got *fault.Error
			if err := list(guestwire.List{Path: "x", Depth: 1, Limit: 1, After: after}); !errors.As(err, &got) || got.Param != "after" {
				t.Errorf("after %q: %v", after, err)
			}
		}
		if n := agent.calls.Load(); n > 0 {
			t.Errorf("the guest heard of %d calls", n)
		}
	})
}

// TestAfterIsRelativeToTheGuest: a caller may send back what it got.
func TestAfterIsRelativeToTheGuest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		agent := &fileAgent{answer: func(w http.ResponseWriter, r *http.Request) {
			got = append(got, r.URL.Query().Get("after"))
			refuse(guestwire.FileNotFound, "")(w, r)
		}}
		files, _, id := withFiles(t, agent.factory())
		for _, test := range [][2]string{
			{"src", "a/b"},
			{"src", "/workspace/src/a/b"},
			{"/workspace/src/", "/workspace/src/a/b"},
			{"./x/../src", "/workspace/src/a/b"},
			{"/", "/a/b"},
			{".", "/workspace/a/b"},
			{"src", "...a"},
			{"src", "a\xff"},
			{"src", ""},
		} {
			_, _, err := files.List(t.Context(), id, guestwire.List{Path: test[0], Depth: 1, Limit: 1, After: test[1]})
			if !fault.Is(err, fault.FileNotFound) {
				t.Errorf("%q: %v", test, err)
			}
		}
		if want := []string{"a/b", "a/b", "a/b", "a/b", "a/b", "a/b", "...a", "a\xff", ""}; !slices.Equal(got, want) {
			t.Errorf("the guest was asked for what follows %q", got)
		}
	})
}

// TestAGuestThatHangs: each call ends when the guest has said nothing for
// StepTimeout, and no earlier; the sandbox is then idle.
func TestAGuestThatHangs(t *testing.T) {
	for call, do := range fileCalls {
		t.Run(call, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				agent := &fileAgent{answer: hangs}
				files, _, id := withFiles(t, agent.factory())
				began := time.Now()
				err := do(t.Context(), files, id, "x")
				if !fault.Is(err, fault.GuestUnreachable) || time.Since(began) != limits.StepTimeout {
					t.Fatalf("%v after %s", err, time.Since(began))
				}
			})
		})
	}
}

// TestACallEndsWithItsCallerAndItsSandbox, at once.
func TestACallEndsWithItsCallerAndItsSandbox(t *testing.T) {
	for call, do := range fileCalls {
		t.Run(call, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				agent := &fileAgent{answer: hangs}
				files, m, id := withFiles(t, agent.factory())
				ctx, cancel := context.WithCancel(t.Context())
				began, ended := time.Now(), make(chan error)
				go func() { ended <- do(ctx, files, id, "x") }()
				synctest.Wait()
				cancel()
				if err := <-ended; err == nil || time.Since(began) > 0 {
					t.Errorf("the caller has gone: %v after %s", err, time.Since(began))
				}
				go func() { ended <- do(t.Context(), files, id, "x") }()
				synctest.Wait()
				var deleting sync.WaitGroup
				defer deleting.Wait()
				deleting.Go(func() {
					if _, err := m.Delete(t.Context(), id); err != nil {
						t.Error(err)
					}
				})
				if err := <-ended; !fault.Is(err, fault.SandboxNotRunning) {
					t.Errorf("the sandbox has gone: %v", err)
				}
			})
		})
	}
}
