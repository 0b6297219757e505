package firecracker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fakeAPI answers as a VMM's API in a jail does, and notes what it was asked.
type fakeAPI struct {
	mu    sync.Mutex
	asked []string // guarded by mu
	state string   // guarded by mu
	fail  string   // the request that is refused
}

func serveAPI(t *testing.T, root, state string) *fakeAPI {
	t.Helper()
	dir := openTest(t, root)
	listener, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), apiName))
	must(t, err)
	api := &fakeAPI{state: state}
	server := &http.Server{Handler: api, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return api
}

func (a *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	request := strings.TrimSpace(r.Method + " " + r.URL.Path + " " + string(body))
	a.asked = append(a.asked, request)
	switch {
	case a.fail != "" && strings.HasPrefix(request, a.fail):
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"fault_message":"no, by \u001b[2J"}`)
	case r.Method == http.MethodGet:
		_, _ = fmt.Fprintf(w, `{"id":%q,"state":%q}`, testHost, a.state)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

func (a *fakeAPI) wants(t *testing.T, want ...string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if strings.Join(a.asked, "\n") != strings.Join(want, "\n") {
		t.Errorf("asked\n%s\nwant\n%s", strings.Join(a.asked, "\n"), strings.Join(want, "\n"))
	}
	a.asked = nil
}

const (
	askState = "GET /"
	pause    = `PATCH /vm {"state":"Paused"}`
	resume   = `PATCH /vm {"state":"Resumed"}`
	create   = `PUT /snapshot/create {"snapshot_type":"Full","snapshot_path":"state.new","mem_file_path":"memory.new"}`
	load     = `PUT /snapshot/load {"snapshot_path":"state","mem_backend":{"backend_type":"File","backend_path":"memory"},"resume_vm":true}`
)

// populate puts a process number into the plan's cgroup.
func (f *templateTest) populate(t *testing.T) {
	t.Helper()
	procs := filepath.Join(f.conf.CgroupDir, testHost, "cgroup.procs")
	must(t, os.MkdirAll(filepath.Dir(procs), 0o700), os.WriteFile(procs, []byte("17\n"), 0o600))
}

// next is a second daemon above the same directories.
func (f *templateTest) next(t *testing.T) *templateTest {
	t.Helper()
	if i := f.instance(testHost); i != nil {
		i.close() // as the end of the first daemon does
	}
	n := &templateTest{VMM: newTest(t, f.conf), plan: f.plan, root: f.root}
	f.trace = nil // both write into it
	return n
}

func TestAdopt(t *testing.T) {
	for state, want := range map[string]struct{ trace, asked string }{
		"Running": {"follow log, remove half-made snapshot", askState},
		"Paused":  {"follow log, resume microVM, remove half-made snapshot", askState + "\n" + resume},
	} {
		t.Run(state, func(t *testing.T) {
			f := newTemplateTest(t)
			f.frozen(t)
			f.populate(t)
			api := serveAPI(t, f.root, state)
			next := f.next(t)
			must(t, next.Adopt(t.Context(), f.plan))
			if got := strings.Join(f.trace, ", "); got != want.trace {
				t.Errorf("trace %s, want %s", got, want.trace)
			}
			api.wants(t, strings.Split(want.asked, "\n")...)
			if left := f.files(t, f.root); strings.Contains(left, ".new") {
				t.Errorf("left %s", left)
			}
			must(t, next.Adopt(t.Context(), f.plan))

			// Its log is followed, and its exit is not known.
			log, err := os.OpenFile(filepath.Join(f.root, logName), os.O_WRONLY, 0)
			must(t, err)
			_, err = log.WriteString("last words")
			must(t, err, log.Close())
			if err := next.explain(testHost, errInjected); !strings.Contains(err.Error(), "last words") {
				t.Errorf("got %v", err)
			}
			if exit, known := next.Exit(testHost); known {
				t.Errorf("its exit is %v", exit)
			}
			if _, err := next.Hello(t.Context(), testHost); err == nil {
				t.Error("it said hello again")
			}
			for what, err := range map[string]error{
				"frozen": next.Freeze(t.Context(), f.plan), "launched": next.Launch(t.Context(), f.plan), "kept": next.Keep(t.Context(), testHost, next.TemplateOf(f.plan)),
			} {
				if err == nil {
					t.Errorf("an adopted microVM was %s", what)
				}
			}
		})
	}
}

func TestAdoptRefuses(t *testing.T) {
	silent := func(t *testing.T, f *templateTest) { // its API answers nobody
		dir := openTest(t, f.root)
		listener, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), apiName))
		must(t, err)
		t.Cleanup(func() { _ = listener.Close() })
	}
	replace := func(with func(path string) error) func(*testing.T, *templateTest) {
		return func(t *testing.T, f *templateTest) {
			path := filepath.Join(f.root, logName)
			must(t, os.Remove(path), with(path))
		}
	}
	for what, c := range map[string]struct {
		spoil func(*testing.T, *templateTest)
		want  string
	}{
		"a VMM that is gone":     {func(t *testing.T, f *templateTest) { must(t, os.RemoveAll(f.conf.CgroupDir)) }, "the VMM has ended"},
		"a jail that is gone":    {func(t *testing.T, f *templateTest) { must(t, f.Remove(t.Context(), testHost)) }, "no such file"},
		"no API":                 {func(*testing.T, *templateTest) {}, "ask the API"},
		"a silent API":           {silent, "patience"},
		"a VM never started":     {func(t *testing.T, f *templateTest) { serveAPI(t, f.root, "Not started") }, `in state "Not started"`},
		"a refused resume":       {func(t *testing.T, f *templateTest) { serveAPI(t, f.root, "Paused").fail = "PATCH" }, `"no, by \x1b[2J"`},
		"a log that is a link":   {replace(func(path string) error { return os.Symlink("/etc/passwd", path) }), "follow log: log is no FIFO"},
		"a log that is a file":   {replace(func(path string) error { return os.WriteFile(path, nil, 0o600) }), "follow log: log is no FIFO"},
		"a log that is a device": {replace(func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o600, 0) }), "follow log: log is no FIFO"},
	} {
		t.Run(what, func(t *testing.T) {
			f := newTemplateTest(t)
			must(t, f.Prepare(t.Context(), f.plan))
			if !strings.HasSuffix(what, "gone") {
				f.populate(t)
			}
			c.spoil(t, f)
			if what == "a jail that is gone" {
				f.populate(t)
			}
			ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, errors.New("no patience"))
			defer cancel()
			if err := f.next(t).Adopt(ctx, f.plan); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestFreezeAndRestoreAskTheAPI(t *testing.T) {
	f := newTemplateTest(t)
	f.frozen(t)
	i := f.instance(testHost)
	i.frozen, i.greeted = nil, true
	api := serveAPI(t, f.root, "Running")
	for _, f.fail = range []string{"pause microVM", "create snapshot"} {
		if err := f.Freeze(t.Context(), f.plan); !errors.Is(err, errInjected) || i.frozen != nil {
			t.Errorf("%s: %v", f.fail, err)
		}
	}
	api.wants(t, pause)
	f.fail, f.trace = "", nil
	must(t, f.Freeze(t.Context(), f.plan))
	api.wants(t, pause, create)
	if got := strings.Join(f.trace, ", "); got != "pause microVM, create snapshot" {
		t.Errorf("trace %s", got)
	}

	f.plan.Template = f.TemplateOf(f.plan)
	must(t, f.Start(t.Context(), f.plan))
	api.wants(t, load)
	api.fail = "PUT /snapshot/load"
	err := f.Start(t.Context(), f.plan)
	if err == nil || !strings.Contains(err.Error(), "template "+f.plan.Template+" did not load: put /snapshot/load: PUT /snapshot/load: status 400: \"no, by \\x1b[2J\"") {
		t.Errorf("got %v", err)
	}
}

func TestFreezeWantsAFreshMicroVM(t *testing.T) {
	f := newTemplateTest(t)
	freeze := func(what string) {
		t.Helper()
		if err := f.Freeze(t.Context(), f.plan); err == nil || !strings.Contains(err.Error(), "is not fresh") && !strings.Contains(err.Error(), "was not started") {
			t.Errorf("%s: got %v", what, err)
		}
	}
	freeze("no jail")
	must(t, f.Prepare(t.Context(), f.plan))
	freeze("no hello")
	i := f.instance(testHost)
	i.greeted = true
	if err := f.Client(testHost).Echo(t.Context(), "x"); err == nil {
		t.Error("somebody answered")
	}
	freeze("an agent that was called")
	i.called, i.template = false, "x"
	freeze("a restored one")
}
