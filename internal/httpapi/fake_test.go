package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/microvmd/microvm/api"
	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/httpapi/gen"
	"github.com/microvmd/microvm/internal/image"
	"github.com/microvmd/microvm/internal/sandbox"
)

const (
	sandboxID   = "sb_01KBA3ZJ7M8QW2X4Y6V8T0R2P4"
	executionID = "exe_01KBA3ZM2N9RX3Y5Z7W9V1S3Q5"
	goodToken   = "mvk_good"
)

var created = time.Date(2026, 11, 30, 9, 15, 2, 317_999_999, time.UTC)

// world is every noun at once; err makes all of them fail, panics makes all
// of them panic. What they were asked is kept.
type world struct {
	err    error
	panics bool

	spec     sandbox.Spec
	extended time.Duration
	touched  int // times
	query    sandbox.Query
	sandbox  sandbox.Sandbox
	page     sandbox.Page
	run      execution.Spec
	exe      execution.Execution
	output   execution.Output
	runs     execution.Query
	waits    []time.Duration
	wait     func(n int) // in the n-th of them; may be nil
	cancel   execution.Cancel
	feed     *feed
	stdin    *stdin
	resized  chan execution.Size // gets each size, if it is not nil
	files    fakeFiles
	images   []image.Image
	tree     image.Spec      // of the last import
	treeText []byte          // of the last import
	brought  map[string]bool // ids that were imported

	mu    sync.Mutex
	from  []execution.Position // guarded by mu: where followers began
	sizes []execution.Size     // guarded by mu
}

func newWorld() *world {
	code := 0
	return &world{
		sandbox: sandbox.Sandbox{
			ID: sandboxID, Image: "python", VCPUs: 1, MemMiB: 256, Expires: created.Add(15 * time.Minute),
			State: sandbox.Running, Boot: sandbox.BootCold, Created: created,
		},
		exe: execution.Execution{
			ID: executionID, Sandbox: sandboxID, Cmd: "python3", Args: []string{"main.py"}, Timeout: 5 * time.Minute,
			Status: execution.Exited, ExitCode: &code, StdoutBytes: 6, Created: created, Finished: created.Add(42 * time.Millisecond),
		},
		output: execution.Output{Stdout: execution.Tail{Bytes: []byte("hello\n")}},
		feed:   newFeed(started(214), output(execution.Stdout, 0, "hello\n"), ended(0)),
		stdin:  newStdin(),
		files:  newFakeFiles(), brought: map[string]bool{},
		images: []image.Image{{
			ID: "python", Language: "python", LanguageVersion: "3.13", Arch: "amd64", SizeBytes: 94371840,
			Digest: "sha256:00", Workdir: "/workspace", User: "user",
		}},
	}
}

func (w *world) fail() error {
	if w.panics {
		panic("secret of a panic")
	}
	return w.err
}

type sandboxes struct{ *world }

func (w sandboxes) Create(_ context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	w.spec = spec
	return w.sandbox, w.fail()
}

func (w sandboxes) Get(context.Context, string) (sandbox.Sandbox, error) { return w.sandbox, w.fail() }

func (w sandboxes) List(_ context.Context, q sandbox.Query) (sandbox.Page, error) {
	w.query = q
	return w.page, w.fail()
}

func (w sandboxes) Delete(context.Context, string) (sandbox.Sandbox, error) {
	ended := w.sandbox
	ended.State, ended.StopReason, ended.Reason = sandbox.Stopped, sandbox.StopDeleted, sandbox.ReasonDeleted
	ended.Stopped = created.Add(time.Minute)
	return ended, w.fail()
}

func (w sandboxes) Extend(_ context.Context, _ string, ttl time.Duration) (sandbox.Sandbox, error) {
	w.extended = ttl
	return w.sandbox, w.fail()
}

func (w sandboxes) Touch(context.Context, string) (sandbox.Sandbox, error) {
	w.touched++
	return w.sandbox, w.fail()
}

type executions struct{ *world }

func (w executions) Start(_ context.Context, _ string, spec execution.Spec) (execution.Execution, error) {
	w.run = spec
	return w.exe, w.fail()
}

func (w executions) Wait(_ context.Context, _, _ string, d time.Duration) (execution.Execution, error) {
	w.waits = append(w.waits, d)
	if w.wait != nil {
		w.wait(len(w.waits))
	}
	return w.exe, w.fail()
}

func (w executions) List(_ context.Context, q execution.Query) (execution.Page, error) {
	w.runs = q
	return execution.Page{Data: []execution.Execution{w.exe}, HasMore: true}, w.fail()
}

func (w executions) Output(execution.Execution) (execution.Output, error) {
	return w.output, w.fail()
}

func (w executions) Cancel(_ context.Context, _, _ string, how execution.Cancel) (execution.Execution, error) {
	w.cancel = how
	return w.exe, w.fail()
}

type images struct{ *world }

func (w images) Images(context.Context) ([]image.Image, error) { return w.images, w.fail() }

func (w images) Import(_ context.Context, spec image.Spec, tree io.Reader) (image.Brought, error) {
	w.tree = spec
	if err := w.fail(); err != nil { // before the body is read
		return image.Brought{}, err
	}
	content, err := io.ReadAll(tree)
	w.treeText = content
	_, twice := w.brought[spec.ID]
	w.brought[spec.ID] = true
	return image.Brought{Image: image.Image{ID: spec.ID, Arch: "amd64", Digest: "sha256:00", Workdir: "/w", User: "root", Source: image.Imported}, New: !twice}, err
}

func (w images) Remove(_ context.Context, id string) (image.Image, error) {
	return image.Image{ID: id, Arch: "amd64", Digest: "sha256:00", Workdir: "/w", User: "root", Source: image.Imported}, w.fail()
}

type keys struct{}

func (keys) Verify(_ context.Context, token string) error {
	if token != goodToken {
		return fault.New(fault.TokenInvalid, "the key does not exist")
	}
	return nil
}

// service is a server over a world, with a client that checks every reply
// against the specification.
type service struct {
	*httptest.Server
	world  *world
	client *http.Client
	log    *lockedBuffer
}

const bodyLimit = 64 << 10

func handler(t testing.TB, w *world, log io.Writer) http.Handler {
	t.Helper()
	h, err := New(Config{
		Sandboxes: sandboxes{w}, Executions: executions{w}, Attached: attachedFake{w}, Files: files{w}, Images: images{w}, Keys: keys{},
		Version: "0.1.0", Logger: slog.New(slog.NewJSONHandler(log, nil)), MaxBodyBytes: bodyLimit,
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func start(t *testing.T) *service {
	t.Helper()
	s := &service{world: newWorld(), log: &lockedBuffer{}}
	h := handler(t, s.world, s.log)
	s.Server = httptest.NewUnstartedServer(h)
	s.Config = NewServer(h, slog.New(slog.DiscardHandler)).Server
	s.Start()
	t.Cleanup(s.Close)
	s.client = &http.Client{Transport: newContract(t, s.Client().Transport)}
	return s
}

// reply is what came back, with its body read.
type reply struct {
	*http.Response
	body []byte
}

func (r reply) fault(t *testing.T) gen.ErrorDetail {
	t.Helper()
	var envelope gen.ErrorReply
	decoder := json.NewDecoder(bytes.NewReader(r.body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&envelope); err != nil {
		t.Fatalf("status %d, no error envelope: %v: %s", r.StatusCode, err, r.body)
	}
	if got := r.Header.Get("Request-Id"); got == "" || got != envelope.Error.RequestID {
		t.Fatalf("Request-Id %q, request_id %q", got, envelope.Error.RequestID)
	}
	if got, want := envelope.Error.DocURL, DocURL(fault.Code(envelope.Error.Code)); got != want {
		t.Fatalf("doc_url %s, want %s", got, want)
	}
	return envelope.Error
}

func (s *service) do(t *testing.T, method, path, body string, edit ...func(*http.Request)) reply {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+goodToken)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, e := range edit {
		e(r)
	}
	return s.send(t, r)
}

func (s *service) send(t *testing.T, r *http.Request) reply {
	t.Helper()
	got, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	content, err := io.ReadAll(got.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got.Header.Get("Request-Id") == "" {
		t.Fatal("a reply without Request-Id")
	}
	return reply{got, content}
}

// contract is a transport that fails the test when a reply is not as the
// specification says: status, headers, type and body.
type contract struct {
	t      testing.TB
	next   http.RoundTripper
	router routers.Router
}

func specificationDocument(t testing.TB) *openapi3.T {
	t.Helper()
	document, err := openapi3.NewLoader().LoadFromData(api.Specification)
	if err != nil {
		t.Fatal(err)
	}
	document.Servers = nil
	return document
}

func newContract(t testing.TB, next http.RoundTripper) *contract {
	t.Helper()
	router, err := gorillamux.NewRouter(specificationDocument(t))
	if err != nil {
		t.Fatal(err)
	}
	return &contract{t: t, next: next, router: router}
}

func (c *contract) RoundTrip(r *http.Request) (*http.Response, error) {
	got, err := c.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	route, params, err := c.router.FindRoute(r)
	if err != nil {
		return got, nil // no route: fault() checks the envelope
	}
	content, err := io.ReadAll(got.Body)
	got.Body.Close()
	got.Body = io.NopCloser(io.MultiReader(bytes.NewReader(content), errReader{err}))
	if err != nil {
		return got, nil // the test wants to see it
	}
	c.check(r, route, params, got.StatusCode, got.Header, content)
	return got, nil
}

func (c *contract) check(r *http.Request, route *routers.Route, params map[string]string, status int, header http.Header, content []byte) {
	c.t.Helper()
	options := &openapi3filter.Options{IncludeResponseStatus: true, AuthenticationFunc: openapi3filter.NoopAuthenticationFunc}
	switch header.Get("Content-Type") {
	case octets, tarType, gzipType, "application/yaml", "text/event-stream":
		options.ExcludeResponseBody = true
	}
	err := openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route, Options: options},
		Status:                 status, Header: header, Body: io.NopCloser(bytes.NewReader(content)), Options: options,
	})
	if err != nil {
		c.t.Errorf("%s %s: the reply %d is not as specified: %v", r.Method, r.URL.Path, status, err)
	}
}

type errReader struct{ err error }

func (e errReader) Read([]byte) (int, error) {
	if e.err == nil {
		return 0, io.EOF
	}
	return 0, e.err
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
