package microvm

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// eventsOf serves a watch, and goes on as it says.
func eventsOf(text string, then func(*http.Request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, text)
		_ = http.NewResponseController(w).Flush()
		if then != nil {
			then(r)
		}
	}
}

func watch(ctx context.Context, c *Client) (events []FileEvent, last error) {
	for event, err := range c.Files.Watch(ctx, sandboxID, WatchFilesParams{Path: "src", Recursive: new(true)}) {
		if err != nil {
			return events, err
		}
		events = append(events, event)
	}
	return events, nil
}

func TestWatch(t *testing.T) {
	const text = `event: created
data: {"directory":true,"from":null,"from_base64":null,"path":"/workspace/src/d","path_base64":null}

: still here

event: moved
data: {"directory":false,"from":"/workspace/src/` + "\uFFFD" + `","from_base64":"L3dvcmtzcGFjZS9zcmMv/w==","path":"/workspace/src/b","path_base64":null}

event: news
data: {}

event: overflow
data: {"message":"x"}

event: error
data: {"code":"sandbox_not_running","message":"it has stopped"}

`
	r := serve(t, handlers{eventsOf(text, nil)})
	events, err := watch(t.Context(), r.Client)
	want := []FileEvent{
		{Type: FileWatching},
		{Type: FileCreated, Path: "/workspace/src/d", Directory: true},
		{Type: FileMoved, Path: "/workspace/src/b", From: "/workspace/src/\xff"},
		{Type: FileMissed},
	}
	if !slices.Equal(events, want) || !HasCode(err, ErrorCodeSandboxNotRunning) {
		t.Errorf("%+v %v", events, err)
	}
	if seen := r.seen(); len(seen) != 1 || !strings.HasSuffix(seen[0], "/files/watch?path=src&recursive=true") {
		t.Errorf("%q", seen)
	}
}

// TestWatchEnds with an error that says why, and never begins anew by itself.
func TestWatchEnds(t *testing.T) {
	var lost *ConnectionError
	for name, test := range map[string]struct {
		script http.HandlerFunc
		fine   func(error) bool
	}{
		"refused":        {refusal(429, ErrorTypeCapacityError, ErrorCodeNodeAtCapacity), func(err error) bool { return HasCode(err, ErrorCodeNodeAtCapacity) }},
		"breaks off":     {eventsOf("", func(*http.Request) { panic(http.ErrAbortHandler) }), func(err error) bool { return errors.As(err, &lost) }},
		"just ends":      {eventsOf("", nil), func(err error) bool { return errors.As(err, &lost) }},
		"another type":   {reply(200, "x"), func(err error) bool { return err != nil && strings.Contains(err.Error(), "no stream") }},
		"no JSON":        {eventsOf("event: created\ndata: x\n\n", nil), func(err error) bool { return err != nil && strings.Contains(err.Error(), "a wrong event") }},
		"a move of none": {eventsOf("event: moved\ndata: {\"path\":\"/a\"}\n\n", nil), func(err error) bool { return err != nil && strings.Contains(err.Error(), "a wrong event") }},
	} {
		r := serve(t, handlers{test.script})
		if _, err := watch(t.Context(), r.Client); !test.fine(err) || len(r.seen()) != 1 {
			t.Errorf("%s: %v after %q", name, err, r.seen())
		}
	}
}

func TestWatchEndsWithItsCaller(t *testing.T) {
	gone := make(chan struct{}, 3)
	waits := func(r *http.Request) { <-r.Context().Done(); gone <- struct{}{} }
	r := serve(t, handlers{eventsOf("", waits)})
	for range r.Files.Watch(t.Context(), sandboxID, WatchFilesParams{Path: "a"}) {
		break
	}
	<-gone
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for event, err := range r.Files.Watch(ctx, sandboxID, WatchFilesParams{Path: "a"}) {
		if event.Type == FileWatching {
			cancel()
		} else if !errors.Is(err, context.Canceled) {
			t.Errorf("%+v %v", event, err)
		}
	}
	<-gone
	r.silence = time.Millisecond
	if _, err := watch(t.Context(), r.Client); !errors.Is(err, errSilent) {
		t.Errorf("a silent node: %v", err)
	}
}
