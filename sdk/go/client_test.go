package microvm

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	sandboxID   = "sb_01KBA3ZJ7M8QW2X4Y6V8T0R2P4"
	executionID = "exe_01KBA3ZM2N9RX3Y5Z7W9V1S3Q5"

	executionsAt  = "/v1/sandboxes/" + sandboxID + "/executions"
	executionPath = executionsAt + "/" + executionID
)

// handlers answer one request each, in order; the last one goes on answering.
type handlers []http.HandlerFunc

// recorder is a server that answers by script and a client whose pauses are
// written down and not slept.
type recorder struct {
	*Client
	mu       sync.Mutex
	requests []string // method and URI, guarded by mu
	pauses   []time.Duration
}

func serve(t *testing.T, script handlers, opts ...Option) *recorder {
	t.Helper()
	r := &recorder{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		n := len(r.requests)
		r.requests = append(r.requests, req.Method+" "+req.RequestURI)
		r.mu.Unlock()
		script[min(n, len(script)-1)](w, req)
	}))
	t.Cleanup(server.Close)
	r.Client = New(append([]Option{WithURL(server.URL), WithAPIKey("mvk_test")}, opts...)...)
	r.now = func() time.Time { return time.Time{} } // every poll seems to have come at once
	r.sleep = func(ctx context.Context, d time.Duration) error {
		r.pauses = append(r.pauses, d)
		return ctx.Err()
	}
	return r
}

func (r *recorder) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.requests...)
}

func reply(status int, body any, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}
}

func refusal(status int, kind ErrorType, code ErrorCode, headers ...string) http.HandlerFunc {
	return reply(status, ErrorReply{Error: ErrorDetail{
		Type: kind, Code: code, Message: "do this", Param: new("vcpus"), RequestID: "req_1", DocURL: "https://example.com/doc",
	}}, headers...)
}

// cut ends the connection after some of the reply.
func cut(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, buffer, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		_, _ = buffer.WriteString(text)
		_ = buffer.Flush()
		_ = conn.Close()
	}
}

func sandbox() Sandbox { return Sandbox{ID: sandboxID, Object: SandboxObjectSandbox, Image: "python"} }

func execution(status ExecutionStatus) Execution {
	return Execution{ID: executionID, Object: ExecutionObjectExecution, Sandbox: sandboxID, Cmd: "python3", Status: status, TimeoutSeconds: 300}
}

const halfReply = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{\"id\": \"sb_"

func TestRepeats(t *testing.T) {
	full := refusal(429, ErrorTypeCapacityError, ErrorCodeNodeAtCapacity, "Retry-After", "7")
	stopping := refusal(503, ErrorTypeAPIError, ErrorCodeShuttingDown, "Retry-After", "1")
	never := refusal(503, ErrorTypeAPIError, ErrorCodeShuttingDown, "Retry-After", "3600")
	internal := refusal(500, ErrorTypeAPIError, ErrorCodeInternalError)
	ok := reply(200, sandbox())
	get := func(c *Client) error { _, err := c.Sandboxes.Retrieve(t.Context(), sandboxID); return err }
	remove := func(c *Client) error { _, err := c.Sandboxes.Delete(t.Context(), sandboxID); return err }
	touch := func(c *Client) error { _, err := c.Sandboxes.Touch(t.Context(), sandboxID); return err }
	extend := func(c *Client) error { _, err := c.Sandboxes.Extend(t.Context(), sandboxID, 60); return err }
	create := func(c *Client) error {
		_, err := c.Sandboxes.Create(t.Context(), SandboxCreate{Image: "python"})
		return err
	}
	for _, test := range []struct {
		name   string
		script handlers
		call   func(*Client) error
		tries  int
		fails  bool
	}{
		{"get after a connection cut before the reply", handlers{cut(""), ok}, get, 2, false},
		{"get after a connection cut within the reply", handlers{cut(halfReply), ok}, get, 2, false},
		{"get after a full node", handlers{full, ok}, get, 2, false},
		{"get while stopping, twice", handlers{stopping, stopping, ok}, get, 3, false},
		{"get is bounded", handlers{stopping}, get, 3, true},
		{"get does not wait for an hour", handlers{never}, get, 1, true},
		{"get after an internal error", handlers{internal, ok}, get, 1, true},
		{"delete after a cut", handlers{cut(""), ok}, remove, 2, false},
		{"touch after a cut", handlers{cut(""), ok}, touch, 2, false},
		{"touch while stopping", handlers{stopping, ok}, touch, 2, false},
		{"extend after a cut is not repeated", handlers{cut(""), ok}, extend, 1, true},
		{"create after a cut is not repeated", handlers{cut(""), ok}, create, 1, true},
		{"create on a full node is not repeated", handlers{full, ok}, create, 1, true},
		{"create while stopping is not repeated", handlers{stopping, ok}, create, 1, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := serve(t, test.script)
			err := test.call(r.Client)
			if (err != nil) != test.fails {
				t.Fatalf("error %v", err)
			}
			if got := len(r.seen()); got != test.tries {
				t.Fatalf("%d tries, want %d", got, test.tries)
			}
			if len(r.pauses) != test.tries-1 {
				t.Fatalf("pauses %v for %d tries", r.pauses, test.tries)
			}
		})
	}
}

func TestRetryAfterIsObeyed(t *testing.T) {
	r := serve(t, handlers{refusal(429, ErrorTypeCapacityError, ErrorCodeNodeAtCapacity, "Retry-After", "7"), reply(200, sandbox())})
	if _, err := r.Sandboxes.Retrieve(t.Context(), sandboxID); err != nil {
		t.Fatal(err)
	}
	if len(r.pauses) != 1 || r.pauses[0] != 7*time.Second {
		t.Fatalf("pauses %v", r.pauses)
	}
}

func TestCreateIsRepeatedWhenNoConnectionCouldBeMade(t *testing.T) {
	// A listener that is closed: its port refuses connections.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	c := New(WithURL("http://" + address))
	var server *http.Server
	c.sleep = func(context.Context, time.Duration) error { // the daemon comes up meanwhile
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		server = &http.Server{Handler: reply(201, sandbox())}
		go func() { _ = server.Serve(l) }()
		return nil
	}
	sb, err := c.Sandboxes.Create(t.Context(), SandboxCreate{Image: "python"})
	if server != nil {
		defer server.Close()
	}
	if err != nil || sb.ID != sandboxID {
		t.Fatalf("%v %v", sb, err)
	}
}

func TestLostReplies(t *testing.T) {
	r := serve(t, handlers{cut("")})
	_, err := r.Sandboxes.Create(t.Context(), SandboxCreate{Image: "python"})
	var lost *ConnectionError
	if !errors.As(err, &lost) || !lost.Sent {
		t.Fatalf("error %v does not say that the request was sent", err)
	}
	c := New(WithSocket(filepath.Join(t.TempDir(), "none.sock")), WithMaxRetries(0))
	_, err = c.Health(t.Context())
	if !errors.As(err, &lost) || lost.Sent {
		t.Fatalf("error %v does not say that there was no connection", err)
	}
}

func TestRefusalIsWhole(t *testing.T) {
	r := serve(t, handlers{refusal(429, ErrorTypeCapacityError, ErrorCodeNodeAtCapacity, "Retry-After", "7")})
	_, err := r.Sandboxes.Create(t.Context(), SandboxCreate{Image: "python"})
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v", err)
	}
	want := Error{
		Type: ErrorTypeCapacityError, Code: ErrorCodeNodeAtCapacity, Message: "do this", Param: "vcpus", RequestID: "req_1",
		Status: 429, DocURL: "https://example.com/doc", RetryAfter: 7 * time.Second,
	}
	if *e != want {
		t.Fatalf("got %+v\nwant %+v", *e, want)
	}
	if !HasCode(err, ErrorCodeNodeAtCapacity) || HasCode(err, ErrorCodeInternalError) {
		t.Fatal("HasCode is wrong")
	}
	if got, want := err.Error(), "create sandbox: do this (node_at_capacity, req_1)"; got != want {
		t.Fatalf("text %q, want %q", got, want)
	}
}

func TestStrangeReplies(t *testing.T) {
	text := func(status int, kind, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Request-Id", "req_9")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		status  int // of the *Error, or 0 for another error
		want    string
	}{
		"proxy page":      {text(502, "text/html", "<h1>Bad Gateway</h1>"), 502, "HTTP 502 with text/html"},
		"error of others": {text(404, "application/json", `{"message":"no"}`), 404, "HTTP 404 with application/json"},
		"error cut":       {cut("HTTP/1.1 500 No\r\nContent-Length: 99\r\n\r\n{\"err"), 500, "HTTP 500"},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusTemporaryRedirect)
		}, 307, "HTTP 307"},
		"no JSON":           {text(200, "text/html", "<h1>Welcome</h1>"), 0, "not what the API promises"},
		"garbage":           {text(200, "application/json", "\x00\xff{"), 0, "not what the API promises"},
		"wrong types":       {text(200, "application/json", `{"object":"sandbox","id":7}`), 0, "not what the API promises"},
		"another object":    {text(200, "application/json", `{"object":"execution"}`), 0, `object is "execution", not "sandbox"`},
		"empty":             {text(200, "application/json", ""), 0, "not what the API promises"},
		"no HTTP at all":    {cut("SSH-2.0-x\r\n"), 0, "malformed HTTP"},
		"fields of futures": {reply(200, map[string]any{"object": "sandbox", "id": sandboxID, "new": 1, "state": "hibernating"}), -1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, handlers{test.handler}, WithMaxRetries(0))
			sb, err := r.Sandboxes.Retrieve(t.Context(), sandboxID)
			if test.status < 0 {
				if err != nil || sb.State != "hibernating" {
					t.Fatalf("%v %v", sb, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "get sandbox: ") {
				t.Fatalf("error %v, want %q", err, test.want)
			}
			var e *Error
			if errors.As(err, &e) != (test.status > 0) || (e != nil && (e.Status != test.status || e.Code != "")) {
				t.Fatalf("error %#v", e)
			}
		})
	}
}

func TestContextBoundsACall(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the caller left")
	r := serve(t, handlers{func(_ http.ResponseWriter, req *http.Request) {
		cancel(gone)
		<-req.Context().Done()
	}})
	_, err := r.Sandboxes.Retrieve(ctx, sandboxID)
	var lost *ConnectionError
	if !errors.Is(err, gone) || !errors.As(err, &lost) {
		t.Fatalf("error %v", err)
	}
	if len(r.seen()) != 1 {
		t.Fatal("repeated after the context's end")
	}
}

func TestHeadersAndAddresses(t *testing.T) {
	var got http.Header
	health := func(w http.ResponseWriter, req *http.Request) {
		got = req.Header
		reply(200, Health{Object: HealthObjectHealth, OK: true, Version: "1"})(w, req)
	}
	server := httptest.NewServer(http.HandlerFunc(health))
	defer server.Close()
	t.Setenv("MICROVM_URL", server.URL+"/v1/")
	t.Setenv("MICROVM_API_KEY", "mvk_environment")
	if _, err := New().Health(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got.Get("Authorization") != "Bearer mvk_environment" || got.Get("User-Agent") != "microvm-go/"+Version {
		t.Fatalf("headers %v", got)
	}

	path := filepath.Join(t.TempDir(), "daemon.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	onSocket := &http.Server{Handler: http.HandlerFunc(health)}
	go func() { _ = onSocket.Serve(listener) }()
	defer onSocket.Close()
	if _, err := New(WithSocket(path)).Health(t.Context()); err != nil {
		t.Fatal(err)
	}
	if key := got.Get("Authorization"); key != "" {
		t.Fatalf("the environment's key %q went to the socket", key)
	}

	for _, address := range []string{"", "127.0.0.1:80", "ftp://x", "http://", "http://u:p@x", "http://x/?a=b"} {
		t.Setenv("MICROVM_URL", "")
		if _, err := New(WithURL(address)).Health(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "make client: ") {
			t.Fatalf("%q: error %v", address, err)
		}
	}
	if _, err := New(WithURL(server.URL), WithAPIKey("a\nb")).Health(t.Context()); err == nil || strings.Contains(err.Error(), "a\nb") {
		t.Fatalf("error %v", err)
	}
}

func TestIDsCannotBecomePaths(t *testing.T) {
	r := serve(t, handlers{reply(200, sandbox())})
	for _, id := range []string{"", ".", ".."} {
		if _, err := r.Sandboxes.Delete(t.Context(), id); err == nil {
			t.Fatalf("%q was sent", id)
		}
	}
	if _, err := r.Sandboxes.Retrieve(t.Context(), "../keys?x=1#y"); err != nil {
		t.Fatal(err)
	}
	if got := r.seen(); len(got) != 1 || got[0] != "GET /v1/sandboxes/..%2Fkeys%3Fx=1%23y" {
		t.Fatalf("requests %q", got)
	}
}

func TestExtendAndTouch(t *testing.T) {
	var body []byte
	r := serve(t, handlers{func(w http.ResponseWriter, req *http.Request) {
		body, _ = io.ReadAll(req.Body)
		reply(200, sandbox())(w, req)
	}})
	if sb, err := r.Sandboxes.Extend(t.Context(), sandboxID, 3600); err != nil || sb.ID != sandboxID || string(body) != `{"ttl_seconds":3600}` {
		t.Fatalf("%+v %v, sent %s", sb, err, body)
	}
	if sb, err := r.Sandboxes.Touch(t.Context(), sandboxID); err != nil || sb.ID != sandboxID || len(body) != 0 {
		t.Fatalf("%+v %v, sent %s", sb, err, body)
	}
	if _, err := r.Sandboxes.Create(t.Context(), SandboxCreate{Image: "python", IdleSeconds: new(-1)}); err != nil || string(body) != `{"idle_seconds":-1,"image":"python"}` {
		t.Fatalf("%v, sent %s", err, body)
	}
	at := "POST /v1/sandboxes/" + sandboxID
	if got := strings.Join(r.seen(), "\n"); got != at+"/extend\n"+at+"/touch\nPOST /v1/sandboxes" {
		t.Fatalf("requests %s", got)
	}
	for _, id := range []string{"", ".."} {
		if _, err := r.Sandboxes.Touch(t.Context(), id); err == nil || !strings.HasPrefix(err.Error(), "touch sandbox: ") {
			t.Fatalf("%q: %v", id, err)
		}
	}
}

type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestTheCallersHTTPClientIsUsedAndNotChanged(t *testing.T) {
	own := &http.Client{Transport: transportFunc(func(r *http.Request) (*http.Response, error) {
		return nil, errors.New("asked for " + r.URL.Path)
	})}
	c := New(WithURL("http://127.0.0.1:1"), WithHTTPClient(own), WithMaxRetries(0))
	if _, err := c.Sandboxes.Retrieve(t.Context(), sandboxID); err == nil || !strings.Contains(err.Error(), "asked for /v1/sandboxes/"+sandboxID) {
		t.Fatalf("another client was used: %v", err)
	}
	if own.CheckRedirect != nil {
		t.Fatal("the caller's own client was changed")
	}
}
