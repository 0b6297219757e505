package httpapi

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/httpapi/gen"
	"github.com/microvmd/microvm/internal/secret"
)

func TestCancel(t *testing.T) {
	for body, want := range map[string]execution.Cancel{
		``:                                       {},
		`{}`:                                     {},
		`{"signal":"SIGINT"}`:                    {Signal: "SIGINT"},
		`{"signal":"SIGTERM","grace_seconds":3}`: {Signal: "SIGTERM", Grace: 3 * time.Second},
	} {
		s := start(t)
		s.world.exe.Status, s.world.exe.Reason, s.world.exe.Signal, s.world.exe.ExitCode = execution.Canceled, execution.ByCaller, "SIGINT", nil
		got := s.do(t, "POST", runPath+"/cancel", body)
		if got.StatusCode != http.StatusOK || s.world.cancel != want {
			t.Errorf("%s: %d, asked for %+v", body, got.StatusCode, s.world.cancel)
		}
		for _, part := range []string{`"status":"canceled"`, `"reason":"canceled"`, `"signal":"SIGINT"`, `"stdout":"hello\n"`} {
			if !strings.Contains(string(got.body), part) {
				t.Errorf("%s lacks %s", got.body, part)
			}
		}
	}
}

// TestWhyItIsBeingEnded: a running execution has a reason once there is one.
func TestWhyItIsBeingEnded(t *testing.T) {
	s := start(t)
	s.world.exe.Status, s.world.exe.ExitCode, s.world.exe.Finished = execution.Running, nil, time.Time{}
	for _, reason := range []execution.Reason{execution.Timeout, execution.ByCaller} {
		s.world.exe.Reason = reason
		if got := s.do(t, "GET", runPath, ""); !strings.Contains(string(got.body), `"reason":"`+string(reason)+`"`) {
			t.Errorf("%s", got.body)
		}
	}
}

func TestStdin(t *testing.T) {
	s := start(t)
	send := func(body, want string) {
		t.Helper()
		got := s.do(t, "POST", runPath+"/stdin", body)
		if got.StatusCode != http.StatusOK || strings.TrimSpace(string(got.body)) != want {
			t.Errorf("%s: %d %s, want %s", body, got.StatusCode, got.body, want)
		}
	}
	send(`{"offset":0}`, `{"closed":false,"object":"execution_stdin","offset":0}`)
	send(`{"offset":0,"data":"aGVsbG8K"}`, `{"closed":false,"object":"execution_stdin","offset":6}`)
	send(`{"offset":0,"data":"aGVsbG8K"}`, `{"closed":false,"object":"execution_stdin","offset":6}`)
	send(`{"offset":3,"data":"bG8K//8="}`, `{"closed":false,"object":"execution_stdin","offset":8}`)
	send(`{"offset":8,"close":true}`, `{"closed":true,"object":"execution_stdin","offset":8}`)
	if text := s.world.stdin.text(); text != "hello\n\xff\xff" {
		t.Errorf("the program got %q", text)
	}
	got := s.do(t, "POST", runPath+"/stdin", `{"offset":9,"data":"eA=="}`)
	if detail := got.fault(t); got.StatusCode != http.StatusBadRequest || value(detail.Param) != "offset" {
		t.Errorf("a gap: %d %+v", got.StatusCode, detail)
	}
	if inputs := &s.Config.Handler.(*server).inputs; len(inputs.held) > 0 {
		t.Error("something is kept of those who have written")
	}
}

func TestResize(t *testing.T) {
	s := start(t)
	s.world.exe.TTY, s.world.exe.StdinOpen = true, true
	got := s.do(t, "POST", runPath+"/resize", `{"rows":50,"cols":132}`)
	if got.StatusCode != http.StatusOK || !slices.Equal(s.world.sizes, []execution.Size{{Rows: 50, Cols: 132}}) {
		t.Errorf("%d, asked for %v", got.StatusCode, s.world.sizes)
	}
	for _, part := range []string{`"tty":true`, `"stdin_open":true`, `"stdout":""`, `"stdout_truncated":true`} {
		if !strings.Contains(string(got.body), part) {
			t.Errorf("%s lacks %s", got.body, part)
		}
	}
}

func TestHowItIsStarted(t *testing.T) {
	const runs = "/v1/sandboxes/" + sandboxID + "/executions"
	for body, want := range map[string]execution.Spec{
		`{"cmd":"a"}`:                                        {},
		`{"cmd":"a","stdin":"x\n"}`:                          {Stdin: "x\n"},
		`{"cmd":"a","stdin":"x","stdin_open":true}`:          {Stdin: "x", StdinOpen: true},
		`{"cmd":"a","stdin_open":false,"tty":false}`:         {},
		`{"cmd":"a","tty":true}`:                             {TTY: &execution.Size{Rows: 24, Cols: 80}},
		`{"cmd":"a","tty":true,"rows":1000}`:                 {TTY: &execution.Size{Rows: 1000, Cols: 80}},
		`{"cmd":"a","tty":true,"rows":1,"cols":1,"env":{}}`:  {TTY: &execution.Size{Rows: 1, Cols: 1}},
		`{"cmd":"a","env":{"A":"","B":"=\u0000x","é":"\n"}}`: {Env: secret.Env{"A": "", "B": "=\x00x", "é": "\n"}}, // the noun's to refuse
	} {
		s := start(t)
		got := s.do(t, "POST", runs, body)
		run := s.world.run
		sized := run.TTY == want.TTY || run.TTY != nil && want.TTY != nil && *run.TTY == *want.TTY
		if got.StatusCode != http.StatusCreated || run.Stdin != want.Stdin || run.StdinOpen != want.StdinOpen || !sized || !maps.Equal(run.Env, want.Env) {
			t.Errorf("%s: %d, asked for %+v", body, got.StatusCode, run)
		}
	}
}

// TestEnvGoesOneWay: into the noun, and into no reply and no log, whatever goes
// wrong.
func TestEnvGoesOneWay(t *testing.T) {
	const value = "s3cret-value"
	s := start(t)
	send := func(path, body string) {
		t.Helper()
		got := s.do(t, "POST", path, body)
		for name, list := range got.Header {
			if strings.Contains(strings.Join(list, " "), value) {
				t.Errorf("the header %s has it", name)
			}
		}
		if strings.Contains(string(got.body), value) {
			t.Errorf("%s: %s", body, got.body)
		}
	}
	const runs = "/v1/sandboxes/" + sandboxID + "/executions"
	send("/v1/sandboxes", `{"image":"python","env":{"TOKEN":"`+value+`"}}`)
	if s.world.spec.Env["TOKEN"] != value {
		t.Error("it did not arrive")
	}
	send(runs, `{"cmd":"a","env":{"TOKEN":"`+value+`"}}`)
	if s.world.run.Env["TOKEN"] != value {
		t.Error("it did not arrive")
	}
	for _, body := range []string{
		`{"cmd":"a","env":{"TOKEN":["` + value + `"]}}`, `{"cmd":"a","env":"` + value + `"}`, `{"cmd":"a","env":{"TOKEN":"` + value + `"},"x":1}`,
		`{"cmd":"a","env":{"TOKEN":"` + value + strings.Repeat("x", 65536-len(value)) + `x"}}`, `{"cmd":"a","env":{"TOKEN":"` + value + `"`, `{"cmd":1,"env":{"TOKEN":"` + value + `"}}`,
	} {
		send(runs, body)
	}
	s.world.err = fault.Wrap(errors.New("x"), fault.InternalError, "an internal error happened")
	send(runs, `{"cmd":"a","env":{"TOKEN":"`+value+`"}}`)
	send("/v1/sandboxes", `{"image":"python","env":{"TOKEN":"`+value+`"}}`)
	s.Close() // the log is whole
	if strings.Contains(s.log.String(), value) {
		t.Errorf("the log:\n%s", s.log)
	}
}

// TestNoReplyHasAnEnv holds the specification to it.
func TestNoReplyHasAnEnv(t *testing.T) {
	for _, name := range []string{"Sandbox", "Execution"} {
		if specificationDocument(t).Components.Schemas[name].Value.Properties["env"] != nil {
			t.Errorf("%s has env", name)
		}
	}
	if content, _ := json.Marshal(gen.Execution{}); strings.Contains(string(content), "env") {
		t.Errorf("%s", content)
	}
}
