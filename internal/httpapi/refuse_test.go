package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"github.com/microvmd/microvm/internal/fault"
)

// TestRefusals holds each way in which a request can be wrong against the code
// and parameter that it must get. No noun is asked: all of them would panic.
func TestRefusals(t *testing.T) {
	const (
		boxes = "/v1/sandboxes"
		box   = boxes + "/" + sandboxID
		runs  = "/v1/sandboxes/" + sandboxID + "/executions"
		file  = "/v1/sandboxes/" + sandboxID + "/files"
	)
	kind := func(value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Content-Type", value) }
	}
	for name, test := range map[string]struct {
		method, path, body string
		edit               func(*http.Request)
		code               fault.Code
		param              string
	}{
		"image missing":            {"POST", boxes, `{}`, nil, fault.ParameterMissing, "image"},
		"image null":               {"POST", boxes, `{"image":null}`, nil, fault.ParameterInvalid, "image"},
		"image number":             {"POST", boxes, `{"image":1}`, nil, fault.ParameterInvalid, "image"},
		"image empty":              {"POST", boxes, `{"image":""}`, nil, fault.ParameterInvalid, "image"},
		"image path":               {"POST", boxes, `{"image":"../x"}`, nil, fault.ParameterInvalid, "image"},
		"vcpus zero":               {"POST", boxes, `{"image":"a","vcpus":0}`, nil, fault.ParameterInvalid, "vcpus"},
		"vcpus many":               {"POST", boxes, `{"image":"a","vcpus":33}`, nil, fault.ParameterInvalid, "vcpus"},
		"vcpus text":               {"POST", boxes, `{"image":"a","vcpus":"1"}`, nil, fault.ParameterInvalid, "vcpus"},
		"vcpus fraction":           {"POST", boxes, `{"image":"a","vcpus":1.5}`, nil, fault.ParameterInvalid, "vcpus"},
		"vcpus huge":               {"POST", boxes, `{"image":"a","vcpus":1e400}`, nil, fault.ParameterInvalid, "vcpus"},
		"mem small":                {"POST", boxes, `{"image":"a","mem_mib":1}`, nil, fault.ParameterInvalid, "mem_mib"},
		"ttl negative":             {"POST", boxes, `{"image":"a","ttl_seconds":-1}`, nil, fault.ParameterInvalid, "ttl_seconds"},
		"idle zero":                {"POST", boxes, `{"image":"a","idle_seconds":0}`, nil, fault.ParameterInvalid, "idle_seconds"},
		"idle long":                {"POST", boxes, `{"image":"a","idle_seconds":2592001}`, nil, fault.ParameterInvalid, "idle_seconds"},
		"idle word":                {"POST", boxes, `{"image":"a","idle_seconds":"never"}`, nil, fault.ParameterInvalid, "idle_seconds"},
		"idle huge":                {"POST", boxes, `{"image":"a","idle_seconds":-1e30}`, nil, fault.ParameterInvalid, "idle_seconds"},
		"boot another way":         {"POST", boxes, `{"image":"a","boot":"warm"}`, nil, fault.ParameterInvalid, "boot"},
		"boot the fastest way":     {"POST", boxes, `{"image":"a","boot":"snapshot"}`, nil, fault.ParameterInvalid, "boot"},
		"boot empty":               {"POST", boxes, `{"image":"a","boot":""}`, nil, fault.ParameterInvalid, "boot"},
		"boot null":                {"POST", boxes, `{"image":"a","boot":null}`, nil, fault.ParameterInvalid, "boot"},
		"boot flag":                {"POST", boxes, `{"image":"a","boot":true}`, nil, fault.ParameterInvalid, "boot"},
		"extend nothing":           {"POST", box + "/extend", `{}`, nil, fault.ParameterMissing, "ttl_seconds"},
		"extend no body":           {"POST", box + "/extend", ``, kind("application/json"), fault.BodyInvalid, ""},
		"extend by zero":           {"POST", box + "/extend", `{"ttl_seconds":0}`, nil, fault.ParameterInvalid, "ttl_seconds"},
		"extend long":              {"POST", box + "/extend", `{"ttl_seconds":2592001}`, nil, fault.ParameterInvalid, "ttl_seconds"},
		"extend unknown field":     {"POST", box + "/extend", `{"ttl_seconds":1,"idle_seconds":1}`, nil, fault.ParameterInvalid, "idle_seconds"},
		"extend no sandbox id":     {"POST", boxes + "/x/extend", `{"ttl_seconds":1}`, nil, fault.SandboxNotFound, ""},
		"touch with a body":        {"POST", box + "/touch", `{"ttl_seconds":1}`, nil, fault.BodyInvalid, ""},
		"touch with a long body":   {"POST", box + "/touch", strings.Repeat(" ", 100) + `{"a":1}`, nil, fault.BodyInvalid, ""},
		"touch no sandbox id":      {"POST", boxes + "/x/touch", ``, nil, fault.SandboxNotFound, ""},
		"touch by GET":             {"GET", box + "/touch", ``, nil, fault.RouteNotFound, ""},
		"delete with a body":       {"DELETE", box, `{"force":true}`, nil, fault.BodyInvalid, ""},
		"start wait long":          {"POST", runs + "?wait=61", `{"cmd":"a"}`, nil, fault.ParameterInvalid, "wait"},
		"start wait word":          {"POST", runs + "?wait=yes", `{"cmd":"a"}`, nil, fault.ParameterInvalid, "wait"},
		"name upper case":          {"POST", boxes, `{"image":"a","name":"A"}`, nil, fault.ParameterInvalid, "name"},
		"tag value number":         {"POST", boxes, `{"image":"a","tags":{"k":1}}`, nil, fault.ParameterInvalid, "tags.k"},
		"tag value long":           {"POST", boxes, `{"image":"a","tags":{"k":"` + strings.Repeat("x", 257) + `"}}`, nil, fault.ParameterInvalid, "tags.k"},
		"tags many":                {"POST", boxes, `{"image":"a","tags":{"1":"","2":"","3":"","4":"","5":"","6":"","7":"","8":"","9":"","10":"","11":""}}`, nil, fault.ParameterInvalid, "tags"},
		"tag key empty":            {"POST", boxes, `{"image":"a","tags":{"":"x"}}`, nil, fault.ParameterInvalid, "tags"},
		"tag key colon":            {"POST", boxes, `{"image":"a","tags":{"a:b":"x"}}`, nil, fault.ParameterInvalid, "tags"},
		"unknown field":            {"POST", boxes, `{"image":"a","network":true}`, nil, fault.ParameterInvalid, "network"},
		"other case":               {"POST", boxes, `{"image":"a","VCPUs":2}`, nil, fault.ParameterInvalid, "VCPUs"},
		"key twice":                {"POST", boxes, `{"image":"a","image":"b"}`, nil, fault.ParameterInvalid, "image"},
		"inner key twice":          {"POST", boxes, `{"image":"a","tags":{"k":"1","k":"2"}}`, nil, fault.ParameterInvalid, "tags.k"},
		"no body":                  {"POST", boxes, ``, kind("application/json"), fault.BodyInvalid, ""},
		"blank body":               {"POST", boxes, `  `, nil, fault.BodyInvalid, ""},
		"array":                    {"POST", boxes, `[]`, nil, fault.BodyInvalid, ""},
		"null":                     {"POST", boxes, `null`, nil, fault.BodyInvalid, ""},
		"not JSON":                 {"POST", boxes, `image=a`, nil, fault.BodyInvalid, ""},
		"half JSON":                {"POST", boxes, `{"image":`, nil, fault.BodyInvalid, ""},
		"trailing":                 {"POST", boxes, `{"image":"a"} x`, nil, fault.BodyInvalid, ""},
		"two objects":              {"POST", boxes, `{"image":"a"}{}`, nil, fault.BodyInvalid, ""},
		"not UTF-8":                {"POST", boxes, "{\"image\":\"\xff\"}", nil, fault.BodyInvalid, ""},
		"deep":                     {"POST", boxes, strings.Repeat("[", 5000), nil, fault.BodyInvalid, ""},
		"many values":              {"POST", runs, `{"cmd":"a","args":[` + strings.Repeat("0,", 20_000) + `0]}`, nil, fault.BodyInvalid, ""},
		"no type":                  {"POST", boxes, `{"image":"a"}`, func(r *http.Request) { r.Header.Del("Content-Type") }, fault.BodyInvalid, ""},
		"form type":                {"POST", boxes, `{"image":"a"}`, kind("application/x-www-form-urlencoded"), fault.BodyInvalid, ""},
		"other charset":            {"POST", boxes, `{"image":"a"}`, kind("application/json; charset=latin1"), fault.BodyInvalid, ""},
		"gzip":                     {"POST", boxes, `{"image":"a"}`, func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") }, fault.BodyInvalid, ""},
		"too large":                {"POST", boxes, `{"image":"` + strings.Repeat("a", bodyLimit) + `"}`, nil, fault.PayloadTooLarge, ""},
		"query on create":          {"POST", boxes + "?vcpus=2", `{"image":"a"}`, nil, fault.ParameterInvalid, "vcpus"},
		"unknown query":            {"GET", boxes + "?page=2", ``, nil, fault.ParameterInvalid, "page"},
		"query twice":              {"GET", boxes + "?limit=1&limit=2", ``, nil, fault.ParameterInvalid, "limit"},
		"query empty":              {"GET", boxes + "?name=", ``, nil, fault.ParameterInvalid, "name"},
		"query broken":             {"GET", boxes + "?name=%zz", ``, nil, fault.ParameterInvalid, ""},
		"query not UTF-8":          {"GET", boxes + "?name=%ff", ``, nil, fault.ParameterInvalid, "name"},
		"limit zero":               {"GET", boxes + "?limit=0", ``, nil, fault.ParameterInvalid, "limit"},
		"limit large":              {"GET", boxes + "?limit=101", ``, nil, fault.ParameterInvalid, "limit"},
		"limit word":               {"GET", boxes + "?limit=all", ``, nil, fault.ParameterInvalid, "limit"},
		"state unknown":            {"GET", boxes + "?state=paused", ``, nil, fault.ParameterInvalid, "state"},
		"tag without colon":        {"GET", boxes + "?tag=job", ``, nil, fault.ParameterInvalid, "tag"},
		"cursor no id":             {"GET", boxes + "?starting_after=x", ``, nil, fault.ParameterInvalid, "starting_after"},
		"cursor of another noun":   {"GET", boxes + "?ending_before=" + executionID, ``, nil, fault.ParameterInvalid, "ending_before"},
		"two cursors":              {"GET", boxes + "?ending_before=" + sandboxID + "&starting_after=" + sandboxID, ``, nil, fault.ParameterInvalid, "ending_before"},
		"no sandbox id":            {"GET", boxes + "/x", ``, nil, fault.SandboxNotFound, ""},
		"lower case id":            {"DELETE", boxes + "/" + strings.ToLower(sandboxID), ``, nil, fault.SandboxNotFound, ""},
		"escaped id":               {"GET", boxes + "/sb_%2e%2e%2f", ``, nil, fault.SandboxNotFound, ""},
		"no execution id":          {"GET", runs + "/x", ``, nil, fault.ExecutionNotFound, ""},
		"executions of no sandbox": {"GET", boxes + "/x/executions", ``, nil, fault.SandboxNotFound, ""},
		"cmd missing":              {"POST", runs, `{"args":[]}`, nil, fault.ParameterMissing, "cmd"},
		"arg number":               {"POST", runs, `{"cmd":"a","args":["x",1]}`, nil, fault.ParameterInvalid, "args.1"},
		"args text":                {"POST", runs, `{"cmd":"a","args":"x"}`, nil, fault.ParameterInvalid, "args"},
		"env not yet":              {"POST", runs, `{"cmd":"a","env":{"A":"b"}}`, nil, fault.ParameterInvalid, "env"},
		"timeout long":             {"POST", runs, `{"cmd":"a","timeout_seconds":86401}`, nil, fault.ParameterInvalid, "timeout_seconds"},
		"wait long":                {"GET", runs + "/" + executionID + "?wait=61", ``, nil, fault.ParameterInvalid, "wait"},
		"wait negative":            {"GET", runs + "/" + executionID + "?wait=-1", ``, nil, fault.ParameterInvalid, "wait"},
		"file path missing":        {"GET", file, ``, nil, fault.ParameterMissing, "path"},
		"file path empty":          {"GET", file + "?path=", ``, nil, fault.ParameterInvalid, "path"},
		"file path NUL":            {"GET", file + "?path=a%00b", ``, nil, fault.ParameterInvalid, "path"},
		"file path bytes":          {"GET", file + "?path=" + strings.Repeat("%C3%A9", 2100), ``, nil, fault.ParameterInvalid, "path"},
		"content missing":          {"POST", file, `{"path":"a"}`, nil, fault.ParameterMissing, "content"},
		"content no base64":        {"POST", file, `{"path":"a","content":"***"}`, nil, fault.ParameterInvalid, "content"},
		"mode decimal":             {"POST", file, `{"path":"a","content":"","mode":"0999"}`, nil, fault.ParameterInvalid, "mode"},
		"mode number":              {"POST", file, `{"path":"a","content":"","mode":420}`, nil, fault.ParameterInvalid, "mode"},
		"mode setuid":              {"PUT", file + "/content?path=a&mode=4755", `x`, kind("application/octet-stream"), fault.ParameterInvalid, "mode"},
		"put JSON":                 {"PUT", file + "/content?path=a", `x`, nil, fault.BodyInvalid, ""},
		"put without path":         {"PUT", file + "/content", `x`, kind("application/octet-stream"), fault.ParameterMissing, "path"},
		"no route":                 {"GET", "/v1/tasks", ``, nil, fault.RouteNotFound, ""},
		"root":                     {"GET", "/", ``, nil, fault.RouteNotFound, ""},
		"slash at the end":         {"GET", boxes + "/", ``, nil, fault.RouteNotFound, ""},
		"two slashes":              {"GET", "/v1//sandboxes", ``, nil, fault.RouteNotFound, ""},
		"dots":                     {"GET", "/v1/x/../sandboxes", ``, nil, fault.RouteNotFound, ""},
		"method":                   {"PATCH", boxes, `{}`, nil, fault.RouteNotFound, ""},
		"options":                  {"OPTIONS", boxes, ``, nil, fault.RouteNotFound, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			s.world.panics = true
			var edits []func(*http.Request)
			if test.edit != nil {
				edits = append(edits, test.edit)
			}
			got := s.do(t, test.method, test.path, test.body, edits...)
			detail := got.fault(t)
			if code := fault.Code(detail.Code); code != test.code {
				t.Errorf("code %s, want %s: %s", code, test.code, detail.Message)
			}
			if got, want := got.StatusCode, statusOf((&fault.Error{Code: test.code}).Kind()); got != want {
				t.Errorf("status %d, want %d", got, want)
			}
			if value(detail.Param) != test.param {
				t.Errorf("param %q, want %q: %s", value(detail.Param), test.param, detail.Message)
			}
			if testing.Verbose() {
				t.Log(detail.Message)
			}
		})
	}
}

func TestWrongMethodSaysWhichThereAre(t *testing.T) {
	s := start(t)
	got := s.do(t, "PUT", "/v1/sandboxes", "")
	if allow := got.Header.Get("Allow"); allow != "GET, POST" {
		t.Errorf("Allow %q", allow)
	}
	got.fault(t)
	head := s.do(t, "HEAD", "/v1/health", "")
	if head.StatusCode != http.StatusNotFound || head.Header.Get("Allow") != "GET" {
		t.Errorf("HEAD: status %d, Allow %q", head.StatusCode, head.Header.Get("Allow"))
	}
}
