package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// fakeKey is the only key that the fake takes.
const fakeKey = "mvk_test"

// fakeNode serves the API from memory, with programs that the scripts name:
// see programs. It is strict: what the generated types do not have is refused.
type fakeNode struct {
	server      *httptest.Server
	interrupted *exec.Cmd // by a script; for ended

	mu        sync.Mutex // guards what follows
	next      int
	sandboxes map[string]*microvm.Sandbox
	idle      map[string]int            // idle_seconds as asked for, by sandbox
	env       map[string]microvm.Env    // by sandbox
	extended  []int                     // ttl_seconds of each extension
	brought   string                    // the last import
	processes map[string]*process       // by the execution's id
	files     map[string]*fakeFile      // "sandbox path"
	cuts      map[string][]int          // see cut
	asked     map[string]int            // requests, by "METHOD noun"
	page      int                       // entries of a list
	raw       http.HandlerFunc          // answers for archives, where it is set
	failing   map[string]*microvm.Error // by "METHOD noun"
	events    map[string]chan struct{}  // closed when it happened
	gates     map[string]chan struct{}  // closed when it may go on
}

func newFakeNode() *fakeNode {
	f := &fakeNode{
		sandboxes: map[string]*microvm.Sandbox{}, idle: map[string]int{}, env: map[string]microvm.Env{}, processes: map[string]*process{}, files: map[string]*fakeFile{}, cuts: map[string][]int{}, asked: map[string]int{}, page: listLimit,
		failing: map[string]*microvm.Error{}, events: map[string]chan struct{}{}, gates: map[string]chan struct{}{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/health", f.health)
	mux.HandleFunc("GET /v1/images", f.keyed("GET images", f.images))
	mux.HandleFunc("POST /v1/images", f.keyed("POST image", f.importImage))
	mux.HandleFunc("DELETE /v1/images/{image}", f.keyed("DELETE image", deleteImage))
	mux.HandleFunc("POST /v1/sandboxes", f.keyed("POST sandbox", f.createSandbox))
	mux.HandleFunc("GET /v1/sandboxes", f.keyed("GET sandboxes", f.listSandboxes))
	mux.HandleFunc("GET /v1/sandboxes/{sandbox}", f.keyed("GET sandbox", f.getSandbox))
	mux.HandleFunc("DELETE /v1/sandboxes/{sandbox}", f.keyed("DELETE sandbox", f.deleteSandbox))
	mux.HandleFunc("POST /v1/sandboxes/{sandbox}/extend", f.keyed("POST extend", f.extendSandbox))
	mux.HandleFunc("POST /v1/sandboxes/{sandbox}/touch", f.keyed("POST touch", f.getSandbox))
	mux.HandleFunc("POST /v1/sandboxes/{sandbox}/executions", f.keyed("POST execution", f.createExecution))
	mux.HandleFunc("GET /v1/sandboxes/{sandbox}/executions", f.keyed("GET executions", f.listExecutions))
	mux.HandleFunc("GET /v1/sandboxes/{sandbox}/executions/{execution}", f.keyed("GET execution", f.getExecution))
	mux.HandleFunc("GET /v1/sandboxes/{sandbox}/executions/{execution}/stream", f.keyed("GET stream", f.streamExecution))
	mux.HandleFunc("GET /v1/sandboxes/{sandbox}/executions/{execution}/terminal", f.keyed("GET terminal", f.openTerminal))
	mux.HandleFunc("POST /v1/sandboxes/{sandbox}/executions/{execution}/cancel", f.keyed("POST cancel", f.cancelExecution))
	mux.HandleFunc("POST /v1/sandboxes/{sandbox}/executions/{execution}/stdin", f.keyed("POST stdin", f.writeStdin))
	mux.HandleFunc("PUT /v1/sandboxes/{sandbox}/files/content", f.keyed("PUT file", f.writeFile))
	mux.HandleFunc("GET /v1/sandboxes/{sandbox}/files", f.keyed("GET file", f.readFile))
	mux.HandleFunc("GET /v1/sandboxes/{sandbox}/files/stat", f.keyed("GET stat", f.statFile))
	mux.HandleFunc("GET /v1/sandboxes/{sandbox}/files/list", f.keyed("GET list", f.listFiles))
	mux.HandleFunc("POST /v1/sandboxes/{sandbox}/files/move", f.keyed("POST move", f.moveFile))
	mux.HandleFunc("GET /v1/sandboxes/{sandbox}/archive", f.keyed("GET archive", f.readArchive))
	mux.HandleFunc("PUT /v1/sandboxes/{sandbox}/archive", f.keyed("PUT archive", f.writeArchive))
	f.server = httptest.NewServer(mux)
	return f
}

// event is closed when name happened; gate holds name back until it is opened.
func (f *fakeNode) event(name string) chan struct{} { return f.signal(f.events, name) }
func (f *fakeNode) gate(name string) chan struct{}  { return f.signal(f.gates, name) }

// close lets go of what a script that failed still holds: the server waits for it.
func (f *fakeNode) close() {
	f.mu.Lock()
	for _, gate := range f.gates {
		select {
		case <-gate:
		default:
			close(gate)
		}
	}
	for _, p := range f.processes {
		p.endLocked(microvm.ExecutionStatusVanished, nil) // who follows one lets go
	}
	f.mu.Unlock()
	f.server.Close()
}

func (f *fakeNode) signal(set map[string]chan struct{}, name string) chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if set[name] == nil {
		set[name] = make(chan struct{})
	}
	return set[name]
}

// happened tells those who wait for the event, and waits where a gate is shut.
func (f *fakeNode) happened(name string) {
	f.mu.Lock()
	if f.events[name] == nil {
		f.events[name] = make(chan struct{})
	}
	select {
	case <-f.events[name]:
	default:
		close(f.events[name])
	}
	gate := f.gates[name]
	f.mu.Unlock()
	if gate != nil {
		<-gate
	}
}

func (f *fakeNode) keyed(what string, handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+fakeKey {
			refuse(w, 401, microvm.ErrorTypeAuthenticationError, microvm.ErrorCodeTokenInvalid, "the key does not exist; make a new one", "")
			return
		}
		f.happened(what)
		f.mu.Lock()
		f.asked[what]++
		e := f.failing[what]
		f.mu.Unlock()
		if e != nil {
			if e.RetryAfter > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(int(e.RetryAfter.Seconds())))
			}
			refuse(w, e.Status, e.Type, e.Code, e.Message, e.Param)
			return
		}
		handle(w, r)
	}
}

func refuse(w http.ResponseWriter, status int, kind microvm.ErrorType, code microvm.ErrorCode, message, param string) {
	detail := microvm.ErrorDetail{Type: kind, Code: code, Message: message, RequestID: "req_fake", DocURL: "https://example.com"}
	if param != "" {
		detail.Param = &param
	}
	send(w, status, microvm.ErrorReply{Error: detail})
}

func missing(w http.ResponseWriter, code microvm.ErrorCode, message string) {
	refuse(w, 404, microvm.ErrorTypeInvalidRequestError, code, message, "")
}

func send(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// take reads a body strictly, and answers when it is wrong.
func take(w http.ResponseWriter, r *http.Request, into any) bool {
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		refuse(w, 400, microvm.ErrorTypeInvalidRequestError, microvm.ErrorCodeBodyInvalid, err.Error(), "")
		return false
	}
	return true
}

func (f *fakeNode) id(prefix string) string {
	f.next++
	return fmt.Sprintf("%s_01KBA3ZJ7M8QW2X4Y6V8T%05d", prefix, f.next)
}

func (f *fakeNode) health(w http.ResponseWriter, _ *http.Request) {
	send(w, 200, microvm.Health{Object: microvm.HealthObjectHealth, OK: true, Version: "9.8.7"})
}

func (f *fakeNode) images(w http.ResponseWriter, _ *http.Request) {
	send(w, 200, microvm.ImageList{Object: microvm.ListObjectList, URL: "/v1/images", Data: []microvm.Image{
		{ID: "base", Object: microvm.ImageObjectImage, Arch: "amd64", Digest: "sha256:0123456789abcdef", SizeBytes: 900, User: "user", Workdir: "/workspace", Source: microvm.ImageSourceImported},
		{
			ID: "python", Object: microvm.ImageObjectImage, Arch: "amd64", Digest: "sha256:" + strings.Repeat("ab", 32), SizeBytes: 94371840, User: "user",
			Workdir: "/workspace", Language: new("python"), LanguageVersion: new("3.13"), Source: microvm.ImageSourceBuilt,
		},
	}})
}

func (f *fakeNode) createSandbox(w http.ResponseWriter, r *http.Request) {
	var spec microvm.SandboxCreate
	if !take(w, r, &spec) {
		return
	}
	if spec.Image != "python" && spec.Image != "base" {
		refuse(w, 404, microvm.ErrorTypeInvalidRequestError, microvm.ErrorCodeImageNotFound, "the node has no image of this id; list images to see those it has", "image")
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	ttl := 900
	sb := &microvm.Sandbox{
		ID: f.id("sb"), Object: microvm.SandboxObjectSandbox, Image: spec.Image, Name: spec.Name, State: microvm.SandboxStateRunning,
		Boot: new(microvm.SandboxBootSnapshot), Created: time.Now().UTC(), Vcpus: 1, MemMib: 256, Tags: spec.Tags,
	}
	if sb.Tags == nil {
		sb.Tags = microvm.Tags{}
	}
	if spec.Boot != nil {
		sb.Boot = new(microvm.SandboxBoot(*spec.Boot))
	}
	if spec.Vcpus != nil {
		sb.Vcpus = *spec.Vcpus
	}
	if spec.MemMib != nil {
		sb.MemMib = *spec.MemMib
	}
	if spec.TTLSeconds != nil {
		ttl = *spec.TTLSeconds
	}
	sb.Expires = sb.Created.Add(time.Duration(ttl) * time.Second)
	if spec.IdleSeconds != nil {
		f.idle[sb.ID] = *spec.IdleSeconds
	}
	f.env[sb.ID] = spec.Env
	f.sandboxes[sb.ID] = sb
	send(w, 201, sb)
}

func (f *fakeNode) listSandboxes(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := r.URL.Query()
	limit, _ := strconv.Atoi(q.Get("limit"))
	list := microvm.SandboxList{Object: microvm.ListObjectList, URL: "/v1/sandboxes", Data: []microvm.Sandbox{}}
	ids := slices.Sorted(maps.Keys(f.sandboxes))
	slices.Reverse(ids)
	for _, id := range ids {
		sb := f.sandboxes[id]
		key, value, tagged := strings.Cut(q.Get("tag"), ":")
		switch {
		case q.Get("state") != "" && q.Get("state") != string(sb.State),
			q.Get("name") != "" && (sb.Name == nil || q.Get("name") != *sb.Name),
			tagged && sb.Tags[key] != value,
			q.Get("starting_after") != "" && id >= q.Get("starting_after"):
		case len(list.Data) == limit:
			list.HasMore = true
		default:
			list.Data = append(list.Data, *sb)
		}
	}
	send(w, 200, list)
}

// sandbox finds the one of a request, or answers that there is none.
func (f *fakeNode) sandbox(w http.ResponseWriter, r *http.Request) *microvm.Sandbox {
	sb := f.sandboxes[r.PathValue("sandbox")]
	if sb == nil {
		missing(w, microvm.ErrorCodeSandboxNotFound, "no sandbox has this id; list sandboxes to see those that exist")
	}
	return sb
}

func (f *fakeNode) getSandbox(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if sb := f.sandbox(w, r); sb != nil {
		send(w, 200, sb)
	}
}

func (f *fakeNode) extendSandbox(w http.ResponseWriter, r *http.Request) {
	var spec microvm.SandboxExtend
	if !take(w, r, &spec) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if sb := f.sandbox(w, r); sb != nil {
		sb.Expires = time.Now().UTC().Add(time.Duration(spec.TTLSeconds) * time.Second)
		f.extended = append(f.extended, spec.TTLSeconds)
		send(w, 200, sb)
	}
}

func (f *fakeNode) deleteSandbox(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sb := f.sandbox(w, r)
	if sb == nil {
		return
	}
	for _, p := range f.processes {
		if p.exe.Sandbox == sb.ID {
			p.endLocked(microvm.ExecutionStatusVanished, func(e *microvm.Execution) { e.Reason = new(microvm.ExecutionReasonDeleted) })
		}
	}
	sb.State, sb.StopReason, sb.Reason = microvm.SandboxStateStopped, new(microvm.SandboxStopReasonStopped), new(microvm.SandboxReasonDeleted)
	sb.Stopped = new(time.Now().UTC())
	send(w, 200, sb)
}
