package httpapi

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/httpapi/gen"
	"github.com/microvmd/microvm/internal/sandbox"
)

// FuzzRequest sends anything to any path: the reply is one that the
// specification has, and never 5xx, and what reaches a noun is within bounds.
func FuzzRequest(f *testing.F) {
	const boxes = "/v1/sandboxes"
	const box = boxes + "/" + sandboxID
	for _, seed := range [][4]string{
		{"GET", boxes, "state=running&tag=job:42&limit=3", ""},
		{"POST", boxes, "", `{"image":"python","name":"a","vcpus":2,"mem_mib":512,"ttl_seconds":60,"tags":{"job":"42"}}`},
		{"POST", boxes, "", `{"image":"python","image":"go"}`},
		{"POST", boxes, "", `{"image":"python","tags":{"":"","a":null},"vcpus":1e3}`},
		{"POST", boxes, "", `{"image":["python"],"x":{"y":[{}]}}`},
		{"POST", boxes, "", `"image"`},
		{"POST", boxes, "", "{\"image\":\"\xff\\ud800\"}"},
		{"POST", boxes, "", `{"image":"python","idle_seconds":-1}`},
		{"POST", boxes, "", `{"image":"python","boot":"cold"}`},
		{"POST", box + "/extend", "", `{"ttl_seconds":3600}`},
		{"POST", box + "/touch", "", ""},
		{"GET", box, "", ""},
		{"DELETE", box, "", ""},
		{"POST", box + "/executions", "", `{"cmd":"sh","args":["-c","exit 3"],"cwd":"/tmp","user":"root","timeout_seconds":10}`},
		{"POST", box + "/executions", "wait=60", `{"cmd":"true"}`},
		{"GET", box + "/executions", "ending_before=" + executionID, ""},
		{"GET", box + "/executions/" + executionID, "wait=60", ""},
		{"POST", box + "/files", "", `{"path":"a","content":"aGk=","mode":"0644"}`},
		{"GET", box + "/files", "path=%00", ""},
		{"PUT", box + "/files/content", "path=a&mode=755", "anything"},
		{"PUT", box + "/files/content", "path=a%ff&append_at=9223372036854775807", "anything"},
		{"POST", box + "/files/batch", "", `{"files":[{"path":"a","content":"aGk="},{"path":"b","content":"YQ","mode":"0600"},1]}`},
		{"POST", box + "/files/move", "", `{"from":"a","to":"b","replace":true}`},
		{"GET", box + "/files/list", "path=%ff&depth=32&limit=1000&after=a%2Fb", ""},
		{"GET", box + "/files/stat", "path=..", ""},
		{"GET", box + "/files/watch", "path=a&recursive=true", ""},
		{"DELETE", box + "/files", "path=a&recursive=true", ""},
		{"POST", box + "/dirs", "", `{"path":"a","mode":"0700"}`},
		{"GET", box + "/archive", "path=a&format=tar.gz&after=b", ""},
		{"PUT", box + "/archive", "path=a&format=tar&owners=keep", "anything"},
		{"POST", box + "/executions", "", `{"cmd":"bash","tty":true,"rows":50,"cols":120,"env":{"A":"b"},"stdin":"x","stdin_open":true}`},
		{"POST", box + "/executions/" + executionID + "/cancel", "", `{"signal":"SIGTERM","grace_seconds":3}`},
		{"POST", box + "/executions/" + executionID + "/cancel", "", ""},
		{"POST", box + "/executions/" + executionID + "/stdin", "", `{"offset":0,"data":"aGk=","close":true}`},
		{"POST", box + "/executions/" + executionID + "/resize", "", `{"rows":50,"cols":120}`},
		{"GET", box + "/executions/" + executionID + "/stream", "after=3.0", ""},
		{"GET", box + "/executions/" + executionID + "/stream", "ticket=mvt_", ""},
		{"GET", box + "/executions/" + executionID + "/terminal", "tail=0", ""},
		{"POST", "/v1/tickets", "", `{"method":"GET","path":"` + box + `/executions/` + executionID + `/stream"}`},
		{"GET", "/openapi.yaml", "", ""},
		{"GET", "//v1/../sandboxes/%2f", "%zz", ""},
	} {
		f.Add(seed[0], seed[1], seed[2], []byte(seed[3]))
	}
	world := newWorld()
	world.files.brief = true
	h := handler(f, world, io.Discard)
	router, err := gorillamux.NewRouter(specificationDocument(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, method, path, query string, body []byte) {
		r, err := http.NewRequestWithContext(t.Context(), method, "http://x", strings.NewReader(string(body)))
		if err != nil {
			return // such a request cannot be sent
		}
		r.URL = &url.URL{Scheme: "http", Host: "x", Path: path, RawQuery: query}
		r.Header.Set("Authorization", "Bearer "+goodToken)
		r.Header.Set("Content-Type", "application/json")
		if method == http.MethodPut {
			r.Header.Set("Content-Type", "application/octet-stream")
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code >= http.StatusInternalServerError {
			t.Fatalf("status %d: %s", w.Code, w.Body)
		}
		if w.Code >= http.StatusBadRequest {
			var envelope gen.ErrorReply
			if err := json.Unmarshal(w.Body.Bytes(), &envelope); err != nil || !envelope.Error.Code.Valid() || envelope.Error.Message == "" {
				t.Fatalf("status %d: no envelope: %s", w.Code, w.Body)
			}
		}
		if spec := world.spec; spec.VCPUs < 0 || spec.VCPUs > 32 || spec.MemMiB < 0 || spec.TTL < 0 || spec.Idle < -time.Second || spec.Idle > 720*time.Hour || spec.Boot != "" && spec.Boot != sandbox.BootCold || len(spec.Tags) > 10 {
			t.Fatalf("a noun was asked for %+v", spec)
		}
		if list := world.files.list; world.files.mode > 0o777 || world.files.at < -1 || len(world.files.batch) > 100 || list.Depth > 32 || list.Limit > 1000 {
			t.Fatalf("a noun was asked for %+v", world.files)
		}
		if world.extended < 0 || world.extended > 720*time.Hour {
			t.Fatalf("a noun was asked to extend by %s", world.extended)
		}
		run, sizes := world.run, world.sizes
		if run.TTY != nil {
			sizes = append(sizes, *run.TTY)
		}
		for _, size := range sizes {
			if size.Rows < 1 || size.Rows > 1000 || size.Cols < 1 || size.Cols > 1000 {
				t.Fatalf("a noun was asked for a terminal of %+v", size)
			}
		}
		if world.cancel.Grace < 0 || world.cancel.Grace > execution.MaxGrace || len(run.Env) > 100 {
			t.Fatalf("a noun was asked for %+v and %d variables", world.cancel, len(run.Env))
		}
		world.sizes = nil
		if route, params, err := router.FindRoute(r); err == nil && method != http.MethodHead {
			c := &contract{t: t, router: router}
			c.check(r, route, params, w.Code, w.Header(), w.Body.Bytes())
		}
	})
}

// FuzzJSON holds the strict check against the decoder that it guards: what it
// lets pass decodes to the same value whether the first or the last of two
// keys would win, because there are no two.
func FuzzJSON(f *testing.F) {
	for _, seed := range []string{
		`{}`, `[]`, `null`, `{"a":{"b":[1,"a",{"c":null}]}}`, `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`,
		`{"a":{"a":1}}`, `[{"a":1},{"a":2}]`, `{} {}`, `{"a":`, strings.Repeat("[", 100), "\xff", `1`, `"x"`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		err := checkJSON(content)
		var decoded any
		plain := json.Unmarshal(content, &decoded)
		if err == nil && plain != nil {
			t.Fatalf("let pass what is no JSON: %v", plain)
		}
		if err != nil {
			if kind := fault.From(err).Kind(); kind != fault.Invalid {
				t.Fatalf("refused as %s", kind)
			}
			return
		}
		again, err := json.Marshal(decoded)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkJSON(again); err != nil {
			t.Fatalf("refuses its own form %s: %v", again, err)
		}
		if countKeys(t, content) != countKeys(t, again) {
			t.Fatalf("a key was lost between %s and %s", content, again)
		}
	})
}

// countKeys counts the keys of all objects.
func countKeys(t *testing.T, content []byte) int {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(string(content)))
	count, depth := 0, []bool{}
	next := false // a key comes next
	for {
		token, err := decoder.Token()
		if err != nil {
			return count
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth = append(depth, token == json.Delim('{'))
			next = depth[len(depth)-1]
			continue
		case json.Delim('}'), json.Delim(']'):
			depth = depth[:len(depth)-1]
		default:
			if next {
				count++
				next = false
				continue
			}
		}
		next = len(depth) > 0 && depth[len(depth)-1]
	}
}
