package contract

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// TestCancel: by each signal, of programs that take it well, and of those that
// do not. It is canceled whatever the program makes of it.
func TestCancel(t *testing.T) {
	d := start(t)
	sb := create(t, d.remote(), microvm.SandboxCreate{Image: "python"})
	for name, test := range map[string]struct {
		program, how string
		code         *int
		signal       string
	}{
		"killed":                {"echo ready; exec sleep 600", ``, nil, "SIGKILL"},
		"killed, said so":       {"echo ready; exec sleep 600", `{"signal":"SIGKILL"}`, nil, "SIGKILL"},
		"asked, does not mind":  {"echo ready; exec sleep 600", `{"signal":"SIGTERM"}`, nil, "SIGTERM"},
		"asked, ends well":      {"trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done", `{"signal":"SIGTERM"}`, ptr(0), ""},
		"asked, ends badly":     {"trap 'exit 7' INT; echo ready; while :; do sleep 0.02; done", `{"signal":"SIGINT"}`, ptr(7), ""},
		"asked, ignores it":     {"trap '' TERM; echo ready; while :; do sleep 0.02; done", `{"signal":"SIGTERM","grace_seconds":1}`, nil, "SIGKILL"},
		"its children go, too":  {"sh -c 'sleep 600; :' & echo ready; wait", ``, nil, "SIGKILL"},
		"killed while it waits": {"sh -c 'echo ready; sleep 600'; :", ``, nil, "SIGKILL"},
	} {
		t.Run(name, func(t *testing.T) {
			body, err := json.Marshal(map[string]any{"cmd": "sh", "args": []string{"-c", test.program}})
			if err != nil {
				t.Fatal(err)
			}
			path := d.begin(t, sb.ID, string(body))
			var ready told
			ready.add(d.stream(t, path+"/stream"), func() bool { return len(ready.stdout) > 0 })
			exe := execution(t, request(t, d, d.key, "POST", path+"/cancel", test.how))
			if exe.Status == "running" && (exe.Reason == nil || *exe.Reason != "canceled") {
				t.Errorf("it runs on, and has %v as its reason", exe.Reason)
			}
			exe = d.waitFor(t, path)
			if exe.Status != "canceled" || exe.Reason == nil || *exe.Reason != "canceled" || exe.Stdout != "ready\n" {
				t.Errorf("%+v", exe)
			}
			if (exe.ExitCode == nil) != (test.code == nil) || exe.ExitCode != nil && *exe.ExitCode != *test.code || text(exe.Signal) != test.signal {
				t.Errorf("it left code %v, signal %q", exe.ExitCode, text(exe.Signal))
			}
			refused := request(t, d, d.key, "POST", path+"/cancel", "")
			checkRefusal(t, refused, 409, "invalid_request_error", "execution_not_running", "")
		})
	}
	eventually(t, "nothing of them runs", func() bool { return len(d.programs()) == 0 })
	refused := request(t, d, d.key, "POST", pathOf(sb.ID, "exe_01KBA3ZM2N9RX3Y5Z7W9V1S3Q5")+"/cancel", "")
	checkRefusal(t, refused, 404, "invalid_request_error", "execution_not_found", "")
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// put sends input, which may be none.
func (d *daemon) put(t *testing.T, path string, offset int, data string, end bool) (taken microvm.ExecutionStdin) {
	t.Helper()
	body := fmt.Sprintf(`{"offset":%d,"data":"%s","close":%t}`, offset, base64.StdEncoding.EncodeToString([]byte(data)), end)
	got := request(t, d, d.key, "POST", path+"/stdin", body)
	if err := json.Unmarshal(got.body, &taken); err != nil || got.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", got.StatusCode, got.body)
	}
	return taken
}

// TestInput: text at the start, more behind it, what is sent twice, and the end.
func TestInput(t *testing.T) {
	d := start(t)
	sb := create(t, d.remote(), microvm.SandboxCreate{Image: "python"})
	t.Run("text", func(t *testing.T) {
		for body, want := range map[string]string{
			`{"cmd":"cat","stdin":"one\ntwo é"}`: "one\ntwo é",
			`{"cmd":"cat","stdin":""}`:           "",
			`{"cmd":"cat"}`:                      "",
		} {
			got := request(t, d, d.key, "POST", "/v1/sandboxes/"+sb.ID+"/executions?wait=60", body)
			var exe microvm.Execution
			if err := json.Unmarshal(got.body, &exe); err != nil || exe.Status != "exited" || exe.Stdout != want || exe.StdinOpen {
				t.Errorf("%s: %d %s", body, got.StatusCode, got.body)
			}
		}
	})
	t.Run("kept open", func(t *testing.T) {
		path := d.begin(t, sb.ID, `{"cmd":"cat","stdin":"a\u00e9","stdin_open":true}`) // 3 bytes
		if taken := d.put(t, path, 0, "", false); taken.Offset != 3 || taken.Closed {
			t.Errorf("%+v", taken)
		}
		if taken := d.put(t, path, 3, "\x00\xff", false); taken.Offset != 5 {
			t.Errorf("%+v", taken)
		}
		if taken := d.put(t, path, 3, "\x00\xff", false); taken.Offset != 5 { // again
			t.Errorf("%+v", taken)
		}
		refused := request(t, d, d.key, "POST", path+"/stdin", `{"offset":6,"data":"eA=="}`)
		checkRefusal(t, refused, 400, "invalid_request_error", "parameter_invalid", "offset")
		if taken := d.put(t, path, 4, "\xffz", true); taken.Offset != 6 || !taken.Closed {
			t.Errorf("%+v", taken)
		}
		var all told
		all.add(d.stream(t, path+"/stream"), nil)
		if how := all.exit(t); string(all.stdout) != "aé\x00\xffz" || how.ExitCode == nil || *how.ExitCode != 0 {
			t.Errorf("%q %+v", all.stdout, how)
		}
		refused = request(t, d, d.key, "POST", path+"/stdin", `{"offset":6,"data":"eA=="}`)
		checkRefusal(t, refused, 409, "invalid_request_error", "execution_not_running", "")
		if exe := d.waitFor(t, path); !exe.StdinOpen || exe.TTY {
			t.Errorf("%+v", exe)
		}
	})
	t.Run("as much as one request may have", func(t *testing.T) {
		path := d.begin(t, sb.ID, `{"cmd":"wc","args":["-c"],"stdin_open":true}`)
		const most = 256 << 10
		if taken := d.put(t, path, 0, strings.Repeat("x", most), false); taken.Offset != most {
			t.Errorf("%+v", taken)
		}
		refused := request(t, d, d.key, "POST", path+"/stdin", fmt.Sprintf(`{"offset":%d,"data":"%s"}`, most, base64.StdEncoding.EncodeToString(make([]byte, most+1))))
		checkRefusal(t, refused, 400, "invalid_request_error", "parameter_invalid", "data")
		d.put(t, path, most, "", true)
		if exe := d.waitFor(t, path); strings.TrimSpace(exe.Stdout) != fmt.Sprint(most) {
			t.Errorf("%+v", exe)
		}
	})
	t.Run("nobody reads", func(t *testing.T) {
		path := d.begin(t, sb.ID, `{"cmd":"sleep","args":["600"],"stdin_open":true}`)
		began := time.Now()
		taken := d.put(t, path, 0, strings.Repeat("x", 128<<10), false)
		if took := time.Since(began); taken.Offset != 64<<10 || taken.Closed || took < 9*time.Second {
			t.Errorf("%+v after %s", taken, took)
		}
	})
	t.Run("not open", func(t *testing.T) {
		path := d.begin(t, sb.ID, `{"cmd":"sleep","args":["600"],"stdin":"x"}`)
		refused := request(t, d, d.key, "POST", path+"/stdin", `{"offset":0,"data":"eA=="}`)
		checkRefusal(t, refused, 400, "invalid_request_error", "parameter_invalid", "execution")
	})
	t.Run("too long a text", func(t *testing.T) {
		body := `{"cmd":"cat","stdin":"` + strings.Repeat("é", 1<<19) + `x"}` // fewer characters than bytes
		refused := request(t, d, d.key, "POST", "/v1/sandboxes/"+sb.ID+"/executions", body)
		checkRefusal(t, refused, 400, "invalid_request_error", "parameter_invalid", "stdin")
	})
}
