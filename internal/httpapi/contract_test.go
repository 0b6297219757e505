package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/microvmd/microvm/api"
	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/httpapi/gen"
	"github.com/microvmd/microvm/internal/sandbox"
)

// places says, for each code that a noun can answer with, a request that meets it.
var places = map[fault.Code][3]string{
	fault.SandboxNotFound:       {"GET", "/v1/sandboxes/" + sandboxID, ""},
	fault.ExecutionNotFound:     {"GET", "/v1/sandboxes/" + sandboxID + "/executions/" + executionID, ""},
	fault.ImageNotFound:         {"POST", "/v1/sandboxes", `{"image":"rust"}`},
	fault.ImageInvalid:          {"POST", "/v1/images?name=a", ""},
	fault.ImageInUse:            {"DELETE", "/v1/images/a", ""},
	fault.FileNotFound:          {"GET", "/v1/sandboxes/" + sandboxID + "/files?path=a", ""},
	fault.ExecutionNotRunning:   {"POST", "/v1/sandboxes/" + sandboxID + "/executions/" + executionID + "/cancel", ""},
	fault.ExecutionNotTTY:       {"POST", "/v1/sandboxes/" + sandboxID + "/executions/" + executionID + "/resize", `{"rows":1,"cols":1}`},
	fault.SandboxNotRunning:     {"POST", "/v1/sandboxes/" + sandboxID + "/executions", `{"cmd":"true"}`},
	fault.ResourceAlreadyExists: {"POST", "/v1/sandboxes", `{"image":"python","name":"a"}`},
	fault.FileConflict:          {"DELETE", "/v1/sandboxes/" + sandboxID + "/files?path=a", ""},
	fault.RangeInvalid:          {"GET", "/v1/sandboxes/" + sandboxID + "/files?path=a", ""},
	fault.FullGuestDisk:         {"POST", "/v1/sandboxes/" + sandboxID + "/files", `{"path":"a","content":""}`},
	fault.NodeAtCapacity:        {"POST", "/v1/sandboxes", `{"image":"python"}`},
	fault.GuestUnreachable:      {"POST", "/v1/sandboxes/" + sandboxID + "/executions", `{"cmd":"true"}`},
	fault.ShuttingDown:          {"POST", "/v1/sandboxes", `{"image":"python"}`},
	fault.QueueUnreachable:      {"GET", "/v1/sandboxes", ""},
	fault.InternalError:         {"GET", "/v1/images", ""},
	fault.ParameterMissing:      {"POST", "/v1/sandboxes", `{"image":"python"}`},
	fault.ParameterInvalid:      {"POST", "/v1/sandboxes", `{"image":"python"}`},
	fault.BodyInvalid:           {"POST", "/v1/sandboxes", `{"image":"python"}`},
	fault.PayloadTooLarge:       {"POST", "/v1/sandboxes", `{"image":"python"}`},
	fault.TokenMissing:          {"GET", "/v1/sandboxes", ""},
	fault.TokenInvalid:          {"GET", "/v1/sandboxes", ""},
	fault.Forbidden:             {"GET", "/v1/sandboxes/" + sandboxID + "/executions/" + executionID + "/terminal", ""},
	fault.RateLimited:           {"POST", "/v1/sandboxes", `{"image":"python"}`},
	fault.RouteNotFound:         {"GET", "/v1/sandboxes/" + sandboxID, ""},
}

func TestEveryCodeReachesTheCaller(t *testing.T) {
	for code, kind := range fault.Codes() {
		t.Run(string(code), func(t *testing.T) {
			place, ok := places[code]
			if !ok {
				t.Fatal("no request of this test meets this code; add one to places")
			}
			s := start(t)
			s.world.err = &fault.Error{Code: code, Param: "name", Message: "what to do next", Cause: errors.New("host detail")}
			got := s.do(t, place[0], place[1], place[2], func(r *http.Request) {
				if strings.HasSuffix(place[1], "/terminal") {
					handshake(r)
				}
			})
			detail := got.fault(t)
			if fault.Code(detail.Code) != code || detail.Message != "what to do next" || value(detail.Param) != "name" {
				t.Errorf("got %+v", detail)
			}
			if got.StatusCode != statusOf(kind) || detail.Type != typeOf(kind) {
				t.Errorf("status %d type %s", got.StatusCode, detail.Type)
			}
			if bytes.Contains(got.body, []byte("host detail")) {
				t.Error("the cause was sent")
			}
			if !strings.Contains(s.log.String(), "host detail") {
				t.Error("the cause was not logged")
			}
			waits := got.StatusCode == http.StatusTooManyRequests || got.StatusCode == http.StatusServiceUnavailable
			if has := got.Header.Get("Retry-After") != ""; has != waits {
				t.Errorf("Retry-After %q", got.Header.Get("Retry-After"))
			}
			if has := got.Header.Get("WWW-Authenticate") != ""; has != (got.StatusCode == http.StatusUnauthorized) {
				t.Errorf("WWW-Authenticate %q", got.Header.Get("WWW-Authenticate"))
			}
		})
	}
}

func TestRetryAfterIsRoundedUp(t *testing.T) {
	for hint, want := range map[time.Duration]string{0: "2", time.Millisecond: "1", time.Second: "1", 1500 * time.Millisecond: "2"} {
		s := start(t)
		s.world.err = &fault.Error{Code: fault.NodeAtCapacity, Message: "full", RetryAfter: hint}
		got := s.do(t, "POST", "/v1/sandboxes", `{"image":"python"}`)
		if got.Header.Get("Retry-After") != want {
			t.Errorf("hint %s: Retry-After %q, want %s", hint, got.Header.Get("Retry-After"), want)
		}
	}
}

// TestSpecificationAgreesWithCodes holds the enums of the specification, its
// examples and docs/errors.md against the codes that exist.
func TestSpecificationAgreesWithCodes(t *testing.T) {
	document := specificationDocument(t)
	listed := map[string]bool{}
	for _, code := range document.Components.Schemas["ErrorCode"].Value.Enum {
		listed[code.(string)] = true
	}
	examples := map[string]gen.ErrorDetail{}
	for name, example := range document.Components.Examples {
		if !strings.HasPrefix(name, "Error") {
			continue
		}
		content, _ := json.Marshal(example.Value.Value)
		var envelope gen.ErrorReply
		if err := json.Unmarshal(content, &envelope); err != nil {
			t.Fatal(err)
		}
		examples[string(envelope.Error.Code)] = envelope.Error
	}
	page, err := os.ReadFile("../../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^## ([a-z_]+)$`).FindAllSubmatch(page, -1) {
		sections[string(match[1])] = true
	}
	for code, kind := range fault.Codes() {
		if !listed[string(code)] {
			t.Errorf("%s is not in the schema ErrorCode", code)
		}
		example, ok := examples[string(code)]
		if !ok || example.Type != typeOf(kind) || example.DocURL != DocURL(code) {
			t.Errorf("%s: its example is missing or wrong: %+v", code, example)
		}
		if !sections[string(code)] {
			t.Errorf("docs/errors.md has no section %s", code)
		}
		delete(sections, string(code))
		delete(listed, string(code))
	}
	for left := range listed {
		t.Errorf("the schema ErrorCode has %s, which does not exist", left)
	}
	for left := range sections {
		t.Errorf("docs/errors.md has a section %s, which is no code", left)
	}
}

func TestSpecificationIsValid(t *testing.T) {
	document := specificationDocument(t)
	if err := document.Validate(t.Context(), openapi3.EnableExamplesValidation()); err != nil {
		t.Error(err)
	}
}

// TestExamplesAreTrue sends every example of a request, and holds every example
// of a reply against its schema.
func TestExamplesAreTrue(t *testing.T) {
	document := specificationDocument(t)
	s := start(t)
	s.world.stdin.taken = []byte("hello\n") // as one of them was sent before another
	sent, seen := 0, 0
	for path, item := range document.Paths.Map() {
		for method, operation := range item.Operations() {
			if operation.RequestBody != nil {
				for name, example := range mediaExamples(operation.RequestBody.Value.Content) {
					body, _ := json.Marshal(example.Value.Value)
					path := strings.NewReplacer("{sandbox}", sandboxID, "{execution}", executionID).Replace(path)
					got := s.do(t, method, path, string(body))
					if got.StatusCode/100 != 2 {
						t.Errorf("%s %s, example %s: %d %s", method, path, name, got.StatusCode, got.body)
					}
					sent++
				}
			}
			for status, response := range operation.Responses.Map() {
				content := response.Value.Content["application/json"]
				for name, example := range mediaExamples(response.Value.Content) {
					plain := example.Value.Value
					if err := content.Schema.Value.VisitJSON(plain, openapi3.EnableJSONSchema2020()); err != nil {
						t.Errorf("%s %s %s, example %s: %v", method, path, status, name, err)
					}
					seen++
				}
			}
		}
	}
	if sent < 8 || seen < 60 {
		t.Errorf("only %d requests and %d replies had examples", sent, seen)
	}
}

func mediaExamples(content openapi3.Content) openapi3.Examples {
	if content["application/json"] == nil {
		return nil
	}
	return content["application/json"].Examples
}

// TestEverythingIsDescribed wants a description, an example and, for request
// numbers and strings, a range of every field.
func TestEverythingIsDescribed(t *testing.T) {
	document := specificationDocument(t)
	for name, schema := range document.Components.Schemas {
		if schema.Value.Description == "" {
			t.Errorf("schema %s has no description", name)
		}
		for field, property := range schema.Value.Properties {
			v := property.Value
			if v.Description == "" {
				t.Errorf("%s.%s has no description", name, field)
			}
			if property.Ref == "" && len(v.OneOf) == 0 && len(v.AllOf) == 0 && len(v.Examples) == 0 && !v.Type.Is("array") {
				t.Errorf("%s.%s has no example", name, field)
			}
		}
	}
}

// TestRequestSchemas holds the schemas of requests to the keywords that the
// validator checks in its 3.0 mode (see loadSpecification).
func TestRequestSchemas(t *testing.T) {
	document := specificationDocument(t)
	allowed := map[string]bool{}
	for _, keyword := range strings.Fields(`type description additionalProperties required properties items examples example default
		minimum maximum minLength maxLength pattern minItems maxItems maxProperties enum format contentEncoding writeOnly allOf $ref x-go-type-skip-optional-pointer`) {
		allowed[keyword] = true
	}
	var walk func(where string, ref *openapi3.SchemaRef)
	walk = func(where string, ref *openapi3.SchemaRef) {
		content, err := json.Marshal(ref.Value)
		if err != nil {
			t.Fatal(err)
		}
		var keywords map[string]json.RawMessage
		if err := json.Unmarshal(content, &keywords); err != nil {
			t.Fatal(err)
		}
		for keyword := range keywords {
			if !allowed[keyword] {
				t.Errorf("%s uses %s, which no request may until the validator is known to check it", where, keyword)
			}
		}
		if ref.Value.Type != nil && len(ref.Value.Type.Slice()) > 1 {
			t.Errorf("%s has several types", where)
		}
		for name, property := range ref.Value.Properties {
			walk(where+"."+name, property)
		}
		for _, part := range ref.Value.AllOf {
			walk(where, part)
		}
		if ref.Value.Items != nil {
			walk(where+"[]", ref.Value.Items)
		}
		if ref.Value.AdditionalProperties.Schema != nil {
			walk(where+".*", ref.Value.AdditionalProperties.Schema)
		}
	}
	for path, item := range document.Paths.Map() {
		for method, operation := range item.Operations() {
			for _, parameter := range append(operation.Parameters, item.Parameters...) {
				walk(method+" "+path+"?"+parameter.Value.Name, parameter.Value.Schema)
			}
			if operation.RequestBody != nil {
				for _, media := range operation.RequestBody.Value.Content {
					walk(method+" "+path, media.Schema)
				}
			}
		}
	}
}

func TestSandboxes(t *testing.T) {
	s := start(t)
	got := s.do(t, "POST", "/v1/sandboxes", `{"image":"python","name":"a","vcpus":2,"mem_mib":512,"ttl_seconds":60,"idle_seconds":30,"boot":"cold","tags":{"job":"42"}}`)
	if got.StatusCode != http.StatusCreated {
		t.Fatalf("create: %d %s", got.StatusCode, got.body)
	}
	spec := s.world.spec
	if spec.Image != "python" || spec.Name != "a" || spec.VCPUs != 2 || spec.MemMiB != 512 || spec.TTL != time.Minute || spec.Idle != 30*time.Second || spec.Boot != sandbox.BootCold || spec.Tags["job"] != "42" {
		t.Errorf("create was asked for %+v", spec)
	}
	want := `{"boot":"cold","created":"2026-11-30T09:15:02.317Z","expires":"2026-11-30T09:30:02.317Z","id":"` + sandboxID +
		`","image":"python","mem_mib":256,"name":null,"object":"sandbox","reason":null,"state":"running","stop_reason":null,"stopped":null,"tags":{},"vcpus":1}`
	if strings.TrimSpace(string(got.body)) != want {
		t.Errorf("create replied\n%s, want\n%s", got.body, want)
	}
	s.do(t, "POST", "/v1/sandboxes", `{"image":"python"}`)
	if spec := s.world.spec; spec.VCPUs != 0 || spec.MemMiB != 0 || spec.TTL != 0 || spec.Idle != 0 || spec.Boot != "" || spec.Name != "" {
		t.Errorf("what was left out was asked for as %+v", spec)
	}
	for _, never := range []string{"-1", "-9000000000000000000"} {
		s.do(t, "POST", "/v1/sandboxes", `{"image":"python","idle_seconds":`+never+`}`)
		if spec := s.world.spec; spec.Idle >= 0 {
			t.Errorf("never (%s) was asked for as %s", never, spec.Idle)
		}
	}

	s.world.page = sandbox.Page{Data: []sandbox.Sandbox{s.world.sandbox}, HasMore: true}
	got = s.do(t, "GET", "/v1/sandboxes?state=running&tag=job:4:2&name=a&limit=7&starting_after="+sandboxID, "")
	if q, want := s.world.query, (sandbox.Query{State: sandbox.Running, TagKey: "job", TagValue: "4:2", Name: "a", Limit: 7, StartingAfter: sandboxID}); q != want {
		t.Errorf("list was asked for %+v", q)
	}
	var list gen.SandboxList
	if err := json.Unmarshal(got.body, &list); err != nil || !list.HasMore || len(list.Data) != 1 || list.URL != "/v1/sandboxes" {
		t.Errorf("list replied %s (%v)", got.body, err)
	}
	s.world.page = sandbox.Page{}
	got = s.do(t, "GET", "/v1/sandboxes", "")
	if s.world.query.Limit != defaultLimit || !strings.Contains(string(got.body), `"data":[]`) {
		t.Errorf("empty list: limit %d, %s", s.world.query.Limit, got.body)
	}

	if got = s.do(t, "GET", "/v1/sandboxes/"+sandboxID, ""); got.StatusCode != http.StatusOK {
		t.Errorf("get: %d", got.StatusCode)
	}
	got = s.do(t, "DELETE", "/v1/sandboxes/"+sandboxID, "")
	if !strings.Contains(string(got.body), `"state":"stopped"`) || !strings.Contains(string(got.body), `"reason":"deleted"`) {
		t.Errorf("delete replied %s", got.body)
	}
}

func TestExtendAndTouch(t *testing.T) {
	s := start(t)
	path := "/v1/sandboxes/" + sandboxID
	got := s.do(t, "POST", path+"/extend", `{"ttl_seconds":3600}`)
	if got.StatusCode != http.StatusOK || s.world.extended != time.Hour || !strings.Contains(string(got.body), `"expires":"2026-11-30T09:30:02.317Z"`) {
		t.Errorf("extend: %d %s, asked for %s", got.StatusCode, got.body, s.world.extended)
	}
	for n, body := range []string{"", "{}", " { }\n"} {
		got = s.do(t, "POST", path+"/touch", body)
		if got.StatusCode != http.StatusOK || s.world.touched != n+1 || !strings.Contains(string(got.body), `"id":"`+sandboxID+`"`) {
			t.Errorf("touch with body %q: %d %s, touched %d times", body, got.StatusCode, got.body, s.world.touched)
		}
	}
}

// TestEndingsAndBootsAreOfTheSpecification sends every value that a sandbox can
// have: the client of these tests holds replies against the enums.
func TestEndingsAndBootsAreOfTheSpecification(t *testing.T) {
	s := start(t)
	s.world.sandbox.State, s.world.sandbox.Stopped = sandbox.Stopped, created
	for reason, stop := range map[sandbox.Reason]sandbox.StopReason{
		sandbox.ReasonDeleted: sandbox.StopDeleted, sandbox.ReasonTTL: sandbox.StopExpired, sandbox.ReasonIdle: sandbox.StopIdle,
		sandbox.ReasonVMDied: sandbox.StopFailed,
	} {
		for _, boot := range []sandbox.Boot{sandbox.BootCold, sandbox.BootSnapshot} {
			s.world.sandbox.Reason, s.world.sandbox.StopReason, s.world.sandbox.Boot = reason, stop, boot
			got := s.do(t, "GET", "/v1/sandboxes/"+sandboxID, "")
			for _, want := range []string{`"reason":"` + string(reason) + `"`, `"stop_reason":"` + string(stop) + `"`, `"boot":"` + string(boot) + `"`} {
				if !strings.Contains(string(got.body), want) {
					t.Errorf("%s lacks %s", got.body, want)
				}
			}
		}
	}
	s.world.exe.Status, s.world.exe.ExitCode, s.world.exe.Reason = execution.Vanished, nil, execution.Idle
	if got := s.do(t, "GET", "/v1/sandboxes/"+sandboxID+"/executions/"+executionID, ""); !strings.Contains(string(got.body), `"reason":"idle"`) {
		t.Errorf("%s", got.body)
	}
}

func TestExecutions(t *testing.T) {
	s := start(t)
	runs := "/v1/sandboxes/" + sandboxID + "/executions"
	got := s.do(t, "POST", runs, `{"cmd":"sh","args":["-c","exit 3"],"cwd":"/tmp","user":"root","timeout_seconds":10}`)
	if run := s.world.run; got.StatusCode != http.StatusCreated || run.Cmd != "sh" || len(run.Args) != 2 || run.Cwd != "/tmp" || run.User != "root" || run.Timeout != 10*time.Second {
		t.Errorf("start: %d, asked for %+v", got.StatusCode, run)
	}
	read := func(query string) gen.Execution {
		t.Helper()
		var wire gen.Execution
		got := s.do(t, "GET", runs+"/"+executionID+query, "")
		if err := json.Unmarshal(got.body, &wire); err != nil || got.StatusCode != http.StatusOK {
			t.Fatalf("get: %d %v %s", got.StatusCode, err, got.body)
		}
		return wire
	}
	wire := read("?wait=60")
	if !slices.Equal(s.world.waits, []time.Duration{time.Minute}) || wire.Stdout != "hello\n" || wire.StdoutTruncated || wire.StdoutBytes != 6 || *wire.DurationMS != 42 || *wire.ExitCode != 0 {
		t.Errorf("waited %s, got %+v", s.world.waits, wire)
	}

	s.world.exe.Status, s.world.exe.Finished, s.world.exe.ExitCode = execution.Running, time.Time{}, nil
	s.world.output = execution.Output{
		Stdout: execution.Tail{Bytes: []byte("\xa9 caf\xc3\xa9 \xff"), Offset: 1000}, // begins inside a rune
		Stderr: execution.Tail{Bytes: []byte{0x80, 0}},
	}
	wire = read("")
	if wire.Stdout != " café \uFFFD" || !wire.StdoutTruncated || wire.StdoutBytes != 1009 || wire.Stderr != "\uFFFD\x00" || wire.StderrTruncated {
		t.Errorf("got %+v", wire)
	}
	if wire.DurationMS != nil || wire.Finished != nil || wire.ExitCode != nil || wire.Reason != nil {
		t.Errorf("a running execution has an end: %+v", wire)
	}

	got = s.do(t, "GET", runs+"?limit=3", "")
	var list gen.ExecutionList
	if err := json.Unmarshal(got.body, &list); err != nil || len(list.Data) != 1 || list.Data[0].Stdout != "" || !list.Data[0].StdoutTruncated || list.URL != runs {
		t.Errorf("list replied %s (%v)", got.body, err)
	}
	if s.world.runs.Sandbox != sandboxID || s.world.runs.Limit != 3 {
		t.Errorf("list was asked for %+v", s.world.runs)
	}
}

// TestStartAndWait: one request for a program that ends soon, and for one that
// does not a reply that names it before its end.
func TestStartAndWait(t *testing.T) {
	const runs = "/v1/sandboxes/" + sandboxID + "/executions"
	begin := func(t *testing.T, s *service, query string) reply {
		got := s.do(t, "POST", runs+query, `{"cmd":"true"}`)
		if got.StatusCode != http.StatusCreated || got.Header.Get("Location") != runs+"/"+executionID {
			t.Fatalf("%s: %d at %q", query, got.StatusCode, got.Header.Get("Location"))
		}
		return got
	}
	// stream returns when the header came; the client of contracts does not.
	stream := func(t *testing.T, s *service, query string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+runs+query, strings.NewReader(`{"cmd":"true"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+goodToken)
		r.Header.Set("Content-Type", "application/json")
		got, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	t.Run("no wait", func(t *testing.T) {
		s := start(t)
		for _, query := range []string{"", "?wait=0"} {
			if got := begin(t, s, query); len(s.world.waits) > 0 || !strings.Contains(string(got.body), `"stdout":"","stdout_bytes":6,"stdout_truncated":true`) {
				t.Errorf("%q: waited %s, %s", query, s.world.waits, got.body)
			}
		}
	})
	t.Run("it ends soon", func(t *testing.T) {
		s := start(t)
		got := begin(t, s, "?wait=60")
		if !slices.Equal(s.world.waits, []time.Duration{quietWait}) || got.ContentLength < 0 || !strings.Contains(string(got.body), `"stdout":"hello\n"`) {
			t.Errorf("waited %s, length %d, %s", s.world.waits, got.ContentLength, got.body)
		}
	})
	t.Run("it ends later", func(t *testing.T) {
		s := start(t)
		s.world.exe.Status = execution.Running
		named := make(chan struct{})
		s.world.wait = func(n int) {
			if n == 2 {
				<-named
				s.world.exe.Status = execution.Exited
			}
		}
		got := stream(t, s, "?wait=60")
		defer got.Body.Close()
		close(named) // only now: the header came before the end
		var wire gen.Execution
		if err := json.NewDecoder(got.Body).Decode(&wire); err != nil || wire.Status != gen.ExecutionStatusExited || wire.Stdout != "hello\n" {
			t.Errorf("%v %+v", err, wire)
		}
		if !slices.Equal(s.world.waits, []time.Duration{quietWait, time.Minute - quietWait}) || got.StatusCode != 201 || got.Header.Get("Location") != runs+"/"+executionID {
			t.Errorf("waited %s, %d at %q", s.world.waits, got.StatusCode, got.Header.Get("Location"))
		}
	})
	t.Run("the wait fails after the header", func(t *testing.T) {
		s := start(t)
		s.world.exe.Status = execution.Running
		s.world.wait = func(n int) {
			if n == 2 {
				s.world.err = errors.New("disk gone")
			}
		}
		got := stream(t, s, "?wait=1")
		defer got.Body.Close()
		if _, err := io.ReadAll(got.Body); err == nil {
			t.Error("the reply seems whole")
		}
		if !strings.Contains(s.log.String(), "disk gone") {
			t.Error("the cause was not logged")
		}
	})
}

// TestQueryValuesArriveWhole: no character of a path or tag has a meaning.
func TestQueryValuesArriveWhole(t *testing.T) {
	s := start(t)
	for _, value := range []string{"a,b.txt", "a b+c", "[1]", "{x}", "null", "123", "true", "a=b&c;d", "é", "../../etc/passwd", "%41", "'\"\\", "a\nb"} {
		s.do(t, "GET", "/v1/sandboxes/"+sandboxID+"/files?path="+url.QueryEscape(value), "")
		if s.world.files.path != value {
			t.Errorf("path %q arrived as %q", value, s.world.files.path)
		}
		s.do(t, "GET", "/v1/sandboxes?tag="+url.QueryEscape("k:"+value), "")
		if s.world.query.TagValue != value {
			t.Errorf("tag %q arrived as %q", value, s.world.query.TagValue)
		}
	}
}

func TestNode(t *testing.T) {
	s := start(t)
	if got := s.do(t, "GET", "/v1/images", ""); !strings.Contains(string(got.body), `"language_version":"3.13"`) {
		t.Errorf("images replied %s", got.body)
	}
	none := func(r *http.Request) { r.Header.Del("Authorization") }
	if got := s.do(t, "GET", "/v1/health", "", none); strings.TrimSpace(string(got.body)) != `{"object":"health","ok":true,"version":"0.1.0"}` {
		t.Errorf("health replied %s", got.body)
	}
	for _, path := range []string{"/openapi.yaml", "/v1/openapi.yaml"} {
		if got := s.do(t, "GET", path, "", none); !bytes.Equal(got.body, api.Specification) {
			t.Errorf("%s is another file", path)
		}
	}
}

func TestNewWantsEverything(t *testing.T) {
	_, err := New(Config{MaxBodyBytes: 1})
	if err == nil {
		t.Fatal("an empty config was taken")
	}
	for _, part := range []string{"sandboxes", "executions", "attached executions", "files", "images", "keys", "version", "body limit"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not name %s", err, part)
		}
	}
}

func TestForeignErrorsAreInternal(t *testing.T) {
	s := start(t)
	s.world.err = context.DeadlineExceeded
	if detail := s.do(t, "GET", "/v1/images", "").fault(t); detail.Code != gen.ErrorCodeInternalError {
		t.Errorf("code %s", detail.Code)
	}
}
