package microvm

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
)

func TestErrFollowsTheTable(t *testing.T) {
	with := func(status ExecutionStatus, reason ExecutionReason, code *int, signal *string) *Execution {
		e := execution(status)
		e.ExitCode, e.Signal = code, signal
		if reason != "" {
			e.Reason = &reason
		}
		return &e
	}
	for _, own := range []*Execution{
		with("exited", "", new(0), nil), with("exited", "", new(1), nil), with("exited", "", new(137), nil),
		with("exited", "", new(255), nil), with("exited", "", nil, new("SIGKILL")),
	} {
		if err := own.Err(); err != nil {
			t.Fatalf("exited %v %v: %v", own.ExitCode, own.Signal, err)
		}
	}
	const notFailed = "your code did not fail"
	tests := []struct {
		status ExecutionStatus
		reason ExecutionReason
		want   []string
	}{
		{"timed_out", "timeout", []string{"exceeded its timeout of 300 s and was killed", "too slow, not crashed"}},
		{"canceled", "canceled", []string{"was cancelled"}},
		{"vanished", "ttl", []string{"the sandbox was taken away (its TTL ended); your code did not fail", "longer TTL"}},
		{"vanished", "idle", []string{"the sandbox was taken away (it was not used for its idle time); your code did not fail", "longer idle time", "touch"}},
		{"vanished", "deleted", []string{notFailed, "it was deleted"}},
		{"vanished", "vm_died", []string{notFailed, "microVM died"}},
		{"vanished", "agent_died", []string{notFailed, "agent died"}},
		{"vanished", "host_oom", []string{notFailed, "host ran out of memory"}},
		{"vanished", "host_restarted", []string{notFailed, "host restarted"}},
		{"vanished", "node_lost", []string{notFailed, "node was lost"}},
		{"vanished", "", []string{notFailed}},
		{"vanished", "new_reason", []string{notFailed, "new_reason"}},
		{"failed", "command_not_found", []string{notFailed, `"python3"`, "never started", "change cmd"}},
		{"failed", "permission_denied", []string{notFailed, "x bit"}},
		{"failed", "bad_directory", []string{notFailed, "change cwd"}},
		{"failed", "user_not_found", []string{notFailed, "change user"}},
		{"failed", "agent_unreachable", []string{notFailed, "run it again"}},
		{"failed", "", []string{notFailed}},
		{"running", "", []string{"has not ended"}},
		{"dissolved", "", []string{`"dissolved"`}},
	}
	reasons := map[ExecutionReason]bool{}
	for _, test := range tests {
		err := with(test.status, test.reason, nil, nil).Err()
		var ending *EndingError
		if !errors.As(err, &ending) || ending.Status != test.status || ending.Reason != test.reason || ending.Remedy == "" {
			t.Fatalf("%s %s: %#v", test.status, test.reason, err)
		}
		for _, part := range test.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s %s: %q lacks %q", test.status, test.reason, err, part)
			}
		}
		reasons[test.reason] = true
	}
	for _, reason := range []ExecutionReason{
		ExecutionReasonTimeout, ExecutionReasonCanceled, ExecutionReasonHostOOM, ExecutionReasonTTL, ExecutionReasonIdle, ExecutionReasonDeleted, ExecutionReasonVMDied, ExecutionReasonAgentDied, ExecutionReasonHostRestarted,
		ExecutionReasonCommandNotFound, ExecutionReasonPermissionDenied, ExecutionReasonBadDirectory, ExecutionReasonUserNotFound, ExecutionReasonAgentUnreachable,
	} {
		if !reasons[reason] {
			t.Errorf("reason %s has no case", reason)
		}
	}
}

func TestRunOfAShortProgramIsOneRequest(t *testing.T) {
	ended := execution("exited")
	ended.ExitCode, ended.Stdout = new(3), "hello\n"
	r := serve(t, handlers{reply(201, ended, "Location", executionPath)})
	exe, err := r.Run(t.Context(), sandboxID, "python3", "main.py")
	if err != nil || exe.Stdout != "hello\n" || *exe.ExitCode != 3 || exe.Err() != nil {
		t.Fatalf("%+v %v", exe, err)
	}
	if got := r.seen(); len(got) != 1 || got[0] != "POST "+executionsAt+"?wait=60" {
		t.Fatalf("requests %q", got)
	}
}

func TestRunWaitsUntilTheEnd(t *testing.T) {
	ended := execution("exited")
	ended.ExitCode, ended.Stdout = new(3), "hello\n"
	after := handlers{
		reply(200, execution("running")),
		cut(halfReply),
		refusal(503, ErrorTypeAPIError, ErrorCodeShuttingDown, "Retry-After", "1"),
		cut(""),
		cut(""),
		reply(200, execution("running")),
		reply(200, ended),
	}
	for name, first := range map[string]http.HandlerFunc{
		"still running":                reply(201, execution("running"), "Location", executionPath),
		"cut after it was named":       cut("HTTP/1.1 201 Created\r\nLocation: " + executionPath + "\r\nContent-Length: 900\r\n\r\n"),
		"cut in the middle":            cut("HTTP/1.1 201 Created\r\nLocation: " + executionPath + "\r\nContent-Length: 900\r\n\r\n{\"id\": \"ex"),
		"cut by a server of chunks":    cut("HTTP/1.1 201 Created\r\nLocation: " + executionPath + "\r\nTransfer-Encoding: chunked\r\n\r\n"),
		"a proxy put itself before it": cut("HTTP/1.1 201 Created\r\nLocation: https://node.example/box" + executionPath + "\r\nContent-Length: 900\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, append(handlers{first}, after...))
			exe, err := r.Run(t.Context(), sandboxID, "python3", "main.py")
			if err != nil || exe.Stdout != "hello\n" || *exe.ExitCode != 3 || exe.Err() != nil {
				t.Fatalf("%+v %v", exe, err)
			}
			requests := r.seen()
			posts := 0
			for _, request := range requests {
				if strings.HasPrefix(request, "POST") {
					posts++
				} else if !strings.HasSuffix(request, executionID+"?wait=60") {
					t.Fatalf("request %q", request)
				}
			}
			if posts != 1 || len(requests) != 8 {
				t.Fatalf("requests %q", requests)
			}
			// At least: the transport repeats some lost reads without a pause by itself.
			if len(r.pauses) < 4 || r.pauses[0] != pollPause {
				t.Fatalf("pauses %v: an answer that came at once must be followed by one", r.pauses)
			}
		})
	}
}

// A start whose reply never named the execution is not repeated: it may run.
func TestRunWhoseStartIsLost(t *testing.T) {
	r := serve(t, handlers{cut(""), reply(201, execution("exited"))})
	exe, err := r.Run(t.Context(), sandboxID, "python3")
	var lost *ConnectionError
	if exe != nil || !errors.As(err, &lost) || !lost.Sent || len(r.seen()) != 1 {
		t.Fatalf("%+v %v %q", exe, err, r.seen())
	}
}

func TestRunDoesNotWaitForWhatNeverStarted(t *testing.T) {
	failed := execution("failed")
	failed.Reason = new(ExecutionReasonCommandNotFound)
	r := serve(t, handlers{reply(201, failed)})
	exe, err := r.Run(t.Context(), sandboxID, "pyton3")
	if err != nil || exe.Err() == nil || len(r.seen()) != 1 {
		t.Fatalf("%+v %v %v", exe, err, r.seen())
	}
}

func TestRunThatIsCutShortNamesTheExecution(t *testing.T) {
	for name, script := range map[string]func(hang http.HandlerFunc) handlers{
		"in the first request": func(hang http.HandlerFunc) handlers { return handlers{hang} },
		"in a later one": func(hang http.HandlerFunc) handlers {
			return handlers{reply(201, execution("running"), "Location", executionPath), hang}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			r := serve(t, script(func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set("Location", executionPath)
				w.WriteHeader(http.StatusCreated)
				_ = http.NewResponseController(w).Flush()
				// The caller has the header when it leaves; see named.
				<-req.Context().Done()
			}))
			r.http.Transport = named{cancel}
			exe, err := r.Run(ctx, sandboxID, "sleep", "60")
			if !errors.Is(err, context.Canceled) || exe == nil || exe.ID != executionID || !strings.Contains(err.Error(), executionID) {
				t.Fatalf("%+v %v", exe, err)
			}
			if exe.Err() == nil || exe.Ended() {
				t.Fatal("an execution that still runs has no answer yet")
			}
		})
	}
}

// named is a transport whose caller leaves when the header of a reply without
// an end has come.
type named struct{ leave func() }

func (n named) RoundTrip(r *http.Request) (*http.Response, error) {
	reply, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && reply.ContentLength < 0 {
		n.leave()
	}
	return reply, err
}

func TestWaitGivesUpOnADaemonThatStaysAway(t *testing.T) {
	r := serve(t, handlers{cut("")})
	if _, err := r.Executions.Wait(t.Context(), sandboxID, executionID); err == nil {
		t.Fatal("no error")
	}
	if got := len(r.seen()); got != 1+2+waitRetries {
		t.Fatalf("%d tries", got)
	}
}

func TestAllFollowsThePages(t *testing.T) {
	page := func(more bool, ids ...string) http.HandlerFunc {
		list := SandboxList{Object: ListObjectList, URL: "/v1/sandboxes", HasMore: more, Data: []Sandbox{}}
		for _, id := range ids {
			sb := sandbox()
			sb.ID = id
			list.Data = append(list.Data, sb)
		}
		return reply(200, list)
	}
	r := serve(t, handlers{page(true, "sb_3", "sb_2"), page(false, "sb_1")})
	var got []string
	for sb, err := range r.Sandboxes.All(t.Context(), ListSandboxesParams{State: new(SandboxStateRunning), Tag: new("job:42")}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, sb.ID)
	}
	if strings.Join(got, " ") != "sb_3 sb_2 sb_1" {
		t.Fatalf("got %v", got)
	}
	want := []string{
		"GET /v1/sandboxes?limit=100&state=running&tag=job%3A42",
		"GET /v1/sandboxes?limit=100&starting_after=sb_2&state=running&tag=job%3A42",
	}
	if requests := r.seen(); strings.Join(requests, "\n") != strings.Join(want, "\n") {
		t.Fatalf("requests %q", requests)
	}

	// A server that always has more and gives the same does not hold it.
	r = serve(t, handlers{page(true, "sb_1")})
	count := 0
	for range r.Sandboxes.All(t.Context(), ListSandboxesParams{}) {
		count++
	}
	if count != 2 {
		t.Fatalf("%d items", count)
	}

	r = serve(t, handlers{page(true, "sb_1"), refusal(500, ErrorTypeAPIError, ErrorCodeInternalError)})
	var last error
	for _, err := range r.Sandboxes.All(t.Context(), ListSandboxesParams{}) {
		last = err
	}
	if !HasCode(last, ErrorCodeInternalError) {
		t.Fatalf("the error of the second page was %v", last)
	}
}

func TestAllExecutionsOfASandbox(t *testing.T) {
	page := func(more bool, ids ...string) http.HandlerFunc {
		list := ExecutionList{Object: ListObjectList, URL: "/v1/sandboxes/" + sandboxID + "/executions", HasMore: more, Data: []Execution{}}
		for _, id := range ids {
			list.Data = append(list.Data, Execution{Object: ExecutionObjectExecution, ID: id})
		}
		return reply(200, list)
	}
	r := serve(t, handlers{page(true, "exe_3", "exe_2"), page(false, "exe_1")})
	var got []string
	for exe, err := range r.Executions.All(t.Context(), sandboxID, ListExecutionsParams{Limit: new(2), EndingBefore: new("exe_0")}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, exe.ID)
	}
	if strings.Join(got, " ") != "exe_3 exe_2 exe_1" {
		t.Fatalf("got %v", got)
	}
	want := []string{
		"GET /v1/sandboxes/" + sandboxID + "/executions?limit=2",
		"GET /v1/sandboxes/" + sandboxID + "/executions?limit=2&starting_after=exe_2",
	}
	if requests := r.seen(); strings.Join(requests, "\n") != strings.Join(want, "\n") {
		t.Fatalf("requests %q", requests)
	}
}
