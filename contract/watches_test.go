package contract

import (
	"errors"
	"io"
	"net/http"
	"testing"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// watched runs do when a watch is in force, and returns what the watch tells until
// enough says that it is.
func (f filesOf) watched(t *testing.T, params microvm.WatchFilesParams, do func(), enough func(microvm.FileEvent) bool) (events []microvm.FileEvent) {
	t.Helper()
	for event, err := range f.Watch(t.Context(), f.sandbox, params) {
		if err != nil {
			t.Fatal(err)
		}
		if event.Type == microvm.FileWatching {
			do()
			continue
		}
		events = append(events, event)
		if enough(event) {
			return events
		}
	}
	return events
}

// TestWatchTellsChanges as they are made by the API and by a program.
func TestWatchTellsChanges(t *testing.T) {
	f := startFiles(t)
	ctx := t.Context()
	f.write(t, "src/old", "x")
	events := f.watched(t, microvm.WatchFilesParams{Path: "src", Recursive: ptr(true)}, func() {
		f.write(t, "src/new", "content")
		if _, err := f.Move(ctx, f.sandbox, microvm.FileMove{From: "src/old", To: "src/moved"}); err != nil {
			t.Error(err)
		}
		exe, err := f.d.remote().Run(ctx, f.sandbox, "sh", "-c", "mkdir -p src/d/e && echo x >src/d/e/deep && rm src/new")
		if err != nil || exe.ExitCode == nil || *exe.ExitCode != 0 {
			t.Errorf("%+v %v", exe, err)
		}
	}, func(e microvm.FileEvent) bool { return e.Type == microvm.FileGone && e.Path == "/workspace/src/new" })
	has := func(want microvm.FileEvent) {
		for _, event := range events {
			if event == want {
				return
			}
		}
		t.Errorf("no %+v in %+v", want, events)
	}
	has(microvm.FileEvent{Type: microvm.FileCreated, Path: "/workspace/src/new"})
	has(microvm.FileEvent{Type: microvm.FileMoved, Path: "/workspace/src/moved", From: "/workspace/src/old"})
	has(microvm.FileEvent{Type: microvm.FileCreated, Path: "/workspace/src/d", Directory: true})
	has(microvm.FileEvent{Type: microvm.FileCreated, Path: "/workspace/src/d/e/deep"})
}

// TestWatchesEnd with what they watch, with their sandbox, and with the daemon; and
// there is a bound on how many there are.
func TestWatchesEnd(t *testing.T) {
	f := startFiles(t)
	ctx := t.Context()
	path := "/v1/sandboxes/" + f.sandbox + "/files/watch?path="
	for _, dir := range []string{"gone", "stays"} {
		if _, err := f.MakeDir(ctx, f.sandbox, dir); err != nil {
			t.Fatal(err)
		}
	}
	checkRefusal(t, request(t, f.d, f.d.key, "GET", path+"none", ""), 404, "invalid_request_error", "file_not_found", "")
	f.write(t, "file", "")
	checkRefusal(t, request(t, f.d, f.d.key, "GET", path+"file", ""), 400, "invalid_request_error", "parameter_invalid", "path")

	gone := f.d.stream(t, path+"gone")
	if _, err := f.Remove(ctx, f.sandbox, "gone", false); err != nil {
		t.Fatal(err)
	}
	last := func(s *events) (e event) {
		for {
			next, ok := s.next()
			if !ok {
				return e
			}
			e = next
		}
	}
	code := func(e event) microvm.ErrorCode {
		var told microvm.FileWatchError
		if e.name == "error" {
			e.decode(t, &told)
		}
		return told.Code
	}
	if e := last(gone); code(e) != microvm.ErrorCodeFileNotFound {
		t.Errorf("what it watched is gone: %+v", e)
	}

	var open []*events
	for range 8 {
		open = append(open, f.d.stream(t, path+"stays"))
	}
	full := request(t, f.d, f.d.key, "GET", path+"stays", "")
	checkRefusal(t, full, http.StatusTooManyRequests, "capacity_error", "node_at_capacity", "path")
	f.write(t, "stays/x", "")
	for i, watch := range open {
		if e, ok := watch.next(); !ok || e.name != "created" {
			t.Errorf("watch %d: %+v", i, e)
		}
	}

	other := create(t, f.d.remote(), microvm.SandboxCreate{Image: "python"})
	left := f.d.stream(t, "/v1/sandboxes/"+other.ID+"/files/watch?path=.")
	if _, err := f.d.remote().Sandboxes.Delete(ctx, f.sandbox); err != nil {
		t.Fatal(err)
	}
	for i, watch := range open {
		if e := last(watch); code(e) != microvm.ErrorCodeSandboxNotRunning {
			t.Errorf("watch %d of a sandbox that has gone: %+v", i, e)
		}
	}
	f.d.stop(t)
	// This daemon drains, so that the sandbox may end first.
	if e := last(left); code(e) != microvm.ErrorCodeShuttingDown && code(e) != microvm.ErrorCodeSandboxNotRunning {
		t.Errorf("a watch of a daemon that stops: %+v", e)
	}
}

// TestVanishedTransfers: a caller that goes in the middle leaves nothing, and no
// place is held for it.
func TestVanishedTransfers(t *testing.T) {
	f := startFiles(t)
	ctx := t.Context()
	broken := errors.New("the source broke")
	for range 20 { // more than an agent works on at once
		source := io.MultiReader(io.LimitReader(zeros{}, 100_000), failing{broken})
		if _, err := f.Upload(ctx, f.sandbox, "half", source); !errors.Is(err, broken) {
			t.Fatal(err)
		}
		source = io.MultiReader(io.LimitReader(zeros{}, 100_000), failing{broken})
		if _, err := f.Append(ctx, f.sandbox, "half", 0, source); !errors.Is(err, broken) {
			t.Fatal(err)
		}
	}
	f.write(t, "whole", "x")
	if names := f.names(t, "."); len(names) != 1 || names[0] != "whole" {
		t.Errorf("%q is left", names)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
