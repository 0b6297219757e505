package httpapi

import (
	"fmt"
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
		run   = runs + "/" + executionID
		file  = "/v1/sandboxes/" + sandboxID + "/files"
	)
	s := start(t)
	s.world.panics = true
	lastEvent := func(ids ...string) func(*http.Request) {
		return func(r *http.Request) { r.Header["Last-Event-Id"] = ids }
	}
	shake := func(name, value string) func(*http.Request) {
		return func(r *http.Request) {
			handshake(r)
			r.Header.Set(name, value)
		}
	}
	kind := func(value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Content-Type", value) }
	}
	ranged := func(value string) func(*http.Request) {
		return func(r *http.Request) { r.Header["Range"] = []string{value} }
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
		"env number":               {"POST", runs, `{"cmd":"a","env":{"A":1}}`, nil, fault.ParameterInvalid, "env.A"},
		"env list":                 {"POST", runs, `{"cmd":"a","env":["A=1"]}`, nil, fault.ParameterInvalid, "env"},
		"env many":                 {"POST", runs, `{"cmd":"a","env":{` + entries(101) + `}}`, nil, fault.ParameterInvalid, "env"},
		"env twice":                {"POST", runs, `{"cmd":"a","env":{"A":"1","A":"2"}}`, nil, fault.ParameterInvalid, "env.A"},
		"env of a sandbox, number": {"POST", boxes, `{"image":"a","env":{"A":1}}`, nil, fault.ParameterInvalid, "env.A"},
		"env of a sandbox, many":   {"POST", boxes, `{"image":"a","env":{` + entries(101) + `}}`, nil, fault.ParameterInvalid, "env"},
		"stdin number":             {"POST", runs, `{"cmd":"a","stdin":1}`, nil, fault.ParameterInvalid, "stdin"},
		"stdin_open word":          {"POST", runs, `{"cmd":"a","stdin_open":"yes"}`, nil, fault.ParameterInvalid, "stdin_open"},
		"rows without tty":         {"POST", runs, `{"cmd":"a","rows":24}`, nil, fault.ParameterInvalid, "rows"},
		"cols without tty":         {"POST", runs, `{"cmd":"a","tty":false,"cols":80}`, nil, fault.ParameterInvalid, "cols"},
		"rows zero":                {"POST", runs, `{"cmd":"a","tty":true,"rows":0}`, nil, fault.ParameterInvalid, "rows"},
		"cols large":               {"POST", runs, `{"cmd":"a","tty":true,"cols":1001}`, nil, fault.ParameterInvalid, "cols"},
		"cancel by another name":   {"POST", run + "/cancel", `{"signal":"TERM"}`, nil, fault.ParameterInvalid, "signal"},
		"cancel by a number":       {"POST", run + "/cancel", `{"signal":9}`, nil, fault.ParameterInvalid, "signal"},
		"cancel, no grace":         {"POST", run + "/cancel", `{"signal":"SIGTERM","grace_seconds":0}`, nil, fault.ParameterInvalid, "grace_seconds"},
		"cancel, long grace":       {"POST", run + "/cancel", `{"signal":"SIGTERM","grace_seconds":301}`, nil, fault.ParameterInvalid, "grace_seconds"},
		"cancel, unknown field":    {"POST", run + "/cancel", `{"force":true}`, nil, fault.ParameterInvalid, "force"},
		"cancel, blank body":       {"POST", run + "/cancel", ` `, nil, fault.BodyInvalid, ""},
		"cancel, no execution id":  {"POST", runs + "/x/cancel", ``, nil, fault.ExecutionNotFound, ""},
		"cancel, no sandbox id":    {"POST", boxes + "/x/executions/" + executionID + "/cancel", ``, nil, fault.SandboxNotFound, ""},
		"cancel by GET":            {"GET", run + "/cancel", ``, nil, fault.RouteNotFound, ""},
		"stdin without offset":     {"POST", run + "/stdin", `{"data":""}`, nil, fault.ParameterMissing, "offset"},
		"stdin, negative offset":   {"POST", run + "/stdin", `{"offset":-1}`, nil, fault.ParameterInvalid, "offset"},
		"stdin, huge offset":       {"POST", run + "/stdin", `{"offset":9223372036854775808}`, nil, fault.ParameterInvalid, "offset"},
		"stdin, no base64":         {"POST", run + "/stdin", `{"offset":0,"data":"*"}`, nil, fault.ParameterInvalid, "data"},
		"stdin, cut base64":        {"POST", run + "/stdin", `{"offset":0,"data":"YQ"}`, nil, fault.ParameterInvalid, "data"},
		"stdin, no body":           {"POST", run + "/stdin", ``, kind("application/json"), fault.BodyInvalid, ""},
		"stdin, no execution id":   {"POST", runs + "/x/stdin", `{"offset":0}`, nil, fault.ExecutionNotFound, ""},
		"resize without cols":      {"POST", run + "/resize", `{"rows":1}`, nil, fault.ParameterMissing, "cols"},
		"resize to nothing":        {"POST", run + "/resize", `{"rows":1,"cols":0}`, nil, fault.ParameterInvalid, "cols"},
		"resize, too large":        {"POST", run + "/resize", `{"rows":1001,"cols":1}`, nil, fault.ParameterInvalid, "rows"},
		"resize, no execution id":  {"POST", runs + "/x/resize", `{"rows":1,"cols":1}`, nil, fault.ExecutionNotFound, ""},
		"stream, no execution id":  {"GET", runs + "/x/stream", ``, nil, fault.ExecutionNotFound, ""},
		"stream, no sandbox id":    {"GET", boxes + "/x/executions/" + executionID + "/stream", ``, nil, fault.SandboxNotFound, ""},
		"stream after nothing":     {"GET", run + "/stream?after=", ``, nil, fault.ParameterInvalid, "after"},
		"stream after a word":      {"GET", run + "/stream?after=start", ``, nil, fault.ParameterInvalid, "after"},
		"stream after one number":  {"GET", run + "/stream?after=12", ``, nil, fault.ParameterInvalid, "after"},
		"stream after a negative":  {"GET", run + "/stream?after=-1.0", ``, nil, fault.ParameterInvalid, "after"},
		"stream after too much":    {"GET", run + "/stream?after=9223372036854775808.0", ``, nil, fault.ParameterInvalid, "after"},
		"stream after 01":          {"GET", run + "/stream?after=01.0", ``, nil, fault.ParameterInvalid, "after"},
		"stream, bad last id":      {"GET", run + "/stream", ``, lastEvent("x"), fault.ParameterInvalid, "after"},
		"stream, contradiction":    {"GET", run + "/stream?after=5.0", ``, lastEvent("4.9"), fault.ParameterInvalid, "after"},
		"stream, two last ids":     {"GET", run + "/stream", ``, lastEvent("1.0", "1.0"), fault.ParameterInvalid, "Last-Event-ID"},
		"stream, empty last id":    {"GET", run + "/stream", ``, lastEvent(""), fault.ParameterInvalid, "after"},
		"stream with a body":       {"GET", run + "/stream", `{"a":1}`, nil, fault.BodyInvalid, ""},
		"terminal after a word":    {"GET", run + "/terminal?after=x", ``, handshake, fault.ParameterInvalid, "after"},
		"terminal after less":      {"GET", run + "/terminal?after=-1", ``, handshake, fault.ParameterInvalid, "after"},
		"terminal, long tail":      {"GET", run + "/terminal?tail=1048577", ``, handshake, fault.ParameterInvalid, "tail"},
		"terminal, tail and after": {"GET", run + "/terminal?tail=1&after=1", ``, handshake, fault.ParameterInvalid, "tail"},
		"terminal, no WebSocket":   {"GET", run + "/terminal", ``, nil, fault.ParameterInvalid, ""},
		"terminal, old version":    {"GET", run + "/terminal", ``, shake("Sec-WebSocket-Version", "8"), fault.ParameterInvalid, ""},
		"terminal, short key":      {"GET", run + "/terminal", ``, shake("Sec-WebSocket-Key", "YQ=="), fault.ParameterInvalid, ""},
		"terminal, another origin": {"GET", run + "/terminal", ``, shake("Origin", "https://evil.example"), fault.Forbidden, ""},
		"terminal, no origin's":    {"GET", run + "/terminal", ``, shake("Origin", "null"), fault.Forbidden, ""},
		"terminal, no sandbox id":  {"GET", boxes + "/x/executions/" + executionID + "/terminal", ``, handshake, fault.SandboxNotFound, ""},
		"ticket for nothing":       {"POST", "/v1/tickets", `{}`, nil, fault.ParameterMissing, "method"},
		"ticket without path":      {"POST", "/v1/tickets", `{"method":"GET"}`, nil, fault.ParameterMissing, "path"},
		"ticket for a POST":        {"POST", "/v1/tickets", `{"method":"POST","path":"` + run + `/stream"}`, nil, fault.ParameterInvalid, "method"},
		"ticket for another route": {"POST", "/v1/tickets", `{"method":"GET","path":"` + run + `"}`, nil, fault.ParameterInvalid, "path"},
		"ticket with a query":      {"POST", "/v1/tickets", `{"method":"GET","path":"` + run + `/stream?after=1.0"}`, nil, fault.ParameterInvalid, "path"},
		"ticket for no id":         {"POST", "/v1/tickets", `{"method":"GET","path":"` + runs + `/x/stream"}`, nil, fault.ParameterInvalid, "path"},
		"ticket and key":           {"GET", run + "/stream?ticket=mvt_x", ``, nil, fault.ParameterInvalid, "ticket"},
		"ticket on another route":  {"GET", run + "?ticket=mvt_x", ``, nil, fault.ParameterInvalid, "ticket"},
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
		"batch of nothing":         {"POST", file + "/batch", `{"files":[]}`, nil, fault.ParameterInvalid, "files"},
		"batch without files":      {"POST", file + "/batch", `{}`, nil, fault.ParameterMissing, "files"},
		"batch, 101 files":         {"POST", file + "/batch", `{"files":[` + strings.Repeat(`{"path":"a","content":""},`, 100) + `{"path":"a","content":""}]}`, nil, fault.ParameterInvalid, "files"},
		"batch, file missing path": {"POST", file + "/batch", `{"files":[{"path":"a","content":""},{"content":""}]}`, nil, fault.ParameterMissing, "files[1].path"},
		"batch, no content":        {"POST", file + "/batch", `{"files":[{"path":"a"}]}`, nil, fault.ParameterMissing, "files[0].content"},
		"batch, path empty":        {"POST", file + "/batch", `{"files":[{"path":"","content":""}]}`, nil, fault.ParameterInvalid, "files[0].path"},
		"batch, path number":       {"POST", file + "/batch", `{"files":[{"path":1,"content":""}]}`, nil, fault.ParameterInvalid, "files[0].path"},
		"batch, path with NUL":     {"POST", file + "/batch", `{"files":[{"path":"a\u0000","content":""}]}`, nil, fault.ParameterInvalid, "files[0].path"},
		"batch, long path":         {"POST", file + "/batch", `{"files":[{"path":"` + strings.Repeat("é", 2049) + `","content":""}]}`, nil, fault.ParameterInvalid, "files[0].path"},
		"batch, no base64":         {"POST", file + "/batch", `{"files":[{"path":"a","content":""},{"path":"b","content":"YQ"}]}`, nil, fault.ParameterInvalid, "files[1].content"},
		"batch, mode":              {"POST", file + "/batch", `{"files":[{"path":"a","content":"","mode":"4755"}]}`, nil, fault.ParameterInvalid, "files[0].mode"},
		"batch, unknown field":     {"POST", file + "/batch", `{"files":[{"path":"a","content":"","owner":"root"}]}`, nil, fault.ParameterInvalid, "files[0].owner"},
		"batch, no object":         {"POST", file + "/batch", `{"files":["a"]}`, nil, fault.ParameterInvalid, "files[0]"},
		"batch, key twice":         {"POST", file + "/batch", `{"files":[{"path":"a","path":"b","content":""}]}`, nil, fault.ParameterInvalid, "files[0].path"},
		"batch, no sandbox id":     {"POST", boxes + "/x/files/batch", `{"files":[{"path":"a","content":""}]}`, nil, fault.SandboxNotFound, ""},
		"append before the start":  {"PUT", file + "/content?path=a&append_at=-1", ``, nil, fault.ParameterInvalid, "append_at"},
		"append at a word":         {"PUT", file + "/content?path=a&append_at=end", ``, nil, fault.ParameterInvalid, "append_at"},
		"append at too much":       {"PUT", file + "/content?path=a&append_at=9223372036854775808", ``, nil, fault.ParameterInvalid, "append_at"},
		"put, other type":          {"PUT", file + "/content?path=a", `x`, kind("application/x-tar"), fault.BodyInvalid, ""},
		"range without bytes":      {"GET", file + "?path=a", ``, ranged("bytes=a-b"), fault.ParameterInvalid, "Range"},
		"range empty":              {"GET", file + "?path=a", ``, ranged(""), fault.ParameterInvalid, "Range"},
		"range backwards":          {"GET", file + "?path=a", ``, ranged("bytes=2-1"), fault.ParameterInvalid, "Range"},
		"remove without path":      {"DELETE", file, ``, nil, fault.ParameterMissing, "path"},
		"remove, recursive word":   {"DELETE", file + "?path=a&recursive=yes", ``, nil, fault.ParameterInvalid, "recursive"},
		"remove, recursive empty":  {"DELETE", file + "?path=a&recursive=", ``, nil, fault.ParameterInvalid, "recursive"},
		"remove with a body":       {"DELETE", file + "?path=a", `{"recursive":true}`, nil, fault.BodyInvalid, ""},
		"remove, unknown query":    {"DELETE", file + "?path=a&force=true", ``, nil, fault.ParameterInvalid, "force"},
		"move without to":          {"POST", file + "/move", `{"from":"a"}`, nil, fault.ParameterMissing, "to"},
		"move, from empty":         {"POST", file + "/move", `{"from":"","to":"b"}`, nil, fault.ParameterInvalid, "from"},
		"move, to with NUL":        {"POST", file + "/move", `{"from":"a","to":"\u0000"}`, nil, fault.ParameterInvalid, "to"},
		"move, replace word":       {"POST", file + "/move", `{"from":"a","to":"b","replace":"yes"}`, nil, fault.ParameterInvalid, "replace"},
		"list, depth 0":            {"GET", file + "/list?depth=0", ``, nil, fault.ParameterInvalid, "depth"},
		"list, depth 33":           {"GET", file + "/list?depth=33", ``, nil, fault.ParameterInvalid, "depth"},
		"list, limit 0":            {"GET", file + "/list?limit=0", ``, nil, fault.ParameterInvalid, "limit"},
		"list, limit 1001":         {"GET", file + "/list?limit=1001", ``, nil, fault.ParameterInvalid, "limit"},
		"list, path empty":         {"GET", file + "/list?path=", ``, nil, fault.ParameterInvalid, "path"},
		"list, path with NUL":      {"GET", file + "/list?path=%00", ``, nil, fault.ParameterInvalid, "path"},
		"list, by an id":           {"GET", file + "/list?starting_after=a", ``, nil, fault.ParameterInvalid, "starting_after"},
		"list, no sandbox id":      {"GET", boxes + "/x/files/list", ``, nil, fault.SandboxNotFound, ""},
		"stat without path":        {"GET", file + "/stat", ``, nil, fault.ParameterMissing, "path"},
		"stat, long path":          {"GET", file + "/stat?path=" + strings.Repeat("a", 4097), ``, nil, fault.ParameterInvalid, "path"},
		"stat by POST":             {"POST", file + "/stat", `{"path":"a"}`, nil, fault.RouteNotFound, ""},
		"dirs without path":        {"POST", box + "/dirs", `{}`, nil, fault.ParameterMissing, "path"},
		"dirs, mode":               {"POST", box + "/dirs", `{"path":"a","mode":"rwx"}`, nil, fault.ParameterInvalid, "mode"},
		"dirs, sticky mode":        {"POST", box + "/dirs", `{"path":"a","mode":"1777"}`, nil, fault.ParameterInvalid, "mode"},
		"archive without path":     {"GET", box + "/archive", ``, nil, fault.ParameterMissing, "path"},
		"archive, format":          {"GET", box + "/archive?path=a&format=zip", ``, nil, fault.ParameterInvalid, "format"},
		"archive, owners":          {"PUT", box + "/archive?path=a&owners=root", ``, nil, fault.ParameterInvalid, "owners"},
		"archive, other type":      {"PUT", box + "/archive?path=a", `x`, kind("application/zip"), fault.BodyInvalid, ""},
		"archive, as JSON":         {"PUT", box + "/archive?path=a", `{}`, kind("application/json"), fault.BodyInvalid, ""},
		"archive, twice encoded":   {"PUT", box + "/archive?path=a", `x`, func(r *http.Request) { asBytes(r); r.Header.Set("Content-Encoding", "gzip") }, fault.BodyInvalid, ""},
		"archive by POST":          {"POST", box + "/archive?path=a", ``, nil, fault.RouteNotFound, ""},
		"watch without path":       {"GET", file + "/watch", ``, nil, fault.ParameterMissing, "path"},
		"watch, recursive number":  {"GET", file + "/watch?path=a&recursive=2", ``, nil, fault.ParameterInvalid, "recursive"},
		"watch with a ticket":      {"GET", file + "/watch?path=a&ticket=mvt_", ``, nil, fault.ParameterInvalid, "ticket"},
		"watch, no sandbox id":     {"GET", boxes + "/x/files/watch?path=a", ``, nil, fault.SandboxNotFound, ""},
	} {
		t.Run(name, func(t *testing.T) {
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

// entries is n entries of an environment.
func entries(n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf(`"E%d":""`, i)
	}
	return strings.Join(list, ",")
}

// handshake makes a request for a WebSocket of it.
func handshake(r *http.Request) {
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "websocket")
	r.Header.Set("Sec-WebSocket-Version", "13")
	r.Header.Set("Sec-WebSocket-Key", "MDEyMzQ1Njc4OWFiY2RlZg==")
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
