package contract

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// TestEnvGoesToTheProgramOnly: what is more specific wins; no reply, no log and
// no file of the daemon has a value.
func TestEnvGoesToTheProgramOnly(t *testing.T) {
	const boxed, own = "s3cret-of-the-sandbox", "s3cret-of-the-execution"
	d := start(t)
	var replies strings.Builder
	send := func(method, path, body string) reply {
		t.Helper()
		got := request(t, d, d.key, method, path, body)
		for name, values := range got.Header {
			replies.WriteString(name + ": " + strings.Join(values, " ") + "\n")
		}
		replies.Write(got.body)
		return got
	}
	made := send("POST", "/v1/sandboxes", `{"image":"python","env":{"BOXED":"`+boxed+`","BOTH":"`+boxed+`","LANG":"x"}}`)
	var sb microvm.Sandbox
	if err := json.Unmarshal(made.body, &sb); err != nil || made.StatusCode != 201 {
		t.Fatalf("%d %s", made.StatusCode, made.body)
	}
	runs := "/v1/sandboxes/" + sb.ID + "/executions"
	// The program says what it got in a way that is none of the values.
	const program = `for n in BOXED BOTH OWN LANG; do eval v=\\$$n; printf '%s ' $n=${v##*-}; done; test -n \"$PATH\" && echo path`
	ran := send("POST", runs+"?wait=60", `{"cmd":"sh","args":["-c","`+program+`"],"env":{"OWN":"`+own+`","BOTH":"`+own+`"}}`)
	var exe microvm.Execution
	if err := json.Unmarshal(ran.body, &exe); err != nil || exe.Stdout != "BOXED=sandbox BOTH=execution OWN=execution LANG=x path\n" {
		t.Errorf("%d %s", ran.StatusCode, ran.body)
	}
	other := send("POST", runs+"?wait=60", `{"cmd":"sh","args":["-c","`+program+`"]}`)
	if err := json.Unmarshal(other.body, &exe); err != nil || exe.Stdout != "BOXED=sandbox BOTH=sandbox OWN= LANG=x path\n" {
		t.Errorf("%d %s", other.StatusCode, other.body)
	}
	send("GET", "/v1/sandboxes/"+sb.ID, "")
	send("GET", "/v1/sandboxes", "")
	send("GET", runs, "")
	send("GET", runs+"/"+exe.ID, "")
	failed := send("POST", runs, `{"cmd":"no-such-program","env":{"OWN":"`+own+`"}}`)
	if !strings.Contains(string(failed.body), "command_not_found") {
		t.Errorf("%s", failed.body)
	}
	for body, param := range map[string]string{
		`{"cmd":"true","env":{"OWN":"` + own + `\u0000"}}`:                                       "env",
		`{"cmd":"true","env":{"A=` + own + `":""}}`:                                              "env",
		`{"cmd":"true","env":{"":"` + own + `"}}`:                                                "env",
		`{"cmd":"true","env":{"OWN":"` + own + `","MORE":"` + strings.Repeat("x", 65530) + `"}}`: "env",
		`{"cmd":"true","env":{"OWN":["` + own + `"]}}`:                                           "env.OWN",
	} {
		checkRefusal(t, send("POST", runs, body), 400, "invalid_request_error", "parameter_invalid", param)
	}
	refused := send("POST", "/v1/sandboxes", `{"image":"python","env":{"A=`+boxed+`":""}}`)
	checkRefusal(t, refused, 400, "invalid_request_error", "parameter_invalid", "env")

	// What the daemon has on its disk while the sandbox runs, and after.
	look := func(when string) {
		t.Helper()
		err := filepath.WalkDir(d.dir, func(path string, entry os.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return nil //nolint:nilerr // what has gone meanwhile holds nothing
			}
			content, _ := os.ReadFile(path)
			if strings.Contains(string(content), "s3cret-of-") {
				t.Errorf("%s, %s has a value", when, strings.TrimPrefix(path, d.dir))
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	look("while it runs")
	send("DELETE", "/v1/sandboxes/"+sb.ID, "")
	send("GET", "/v1/sandboxes/"+sb.ID, "")
	d.stop(t)
	look("after the end")
	if strings.Contains(replies.String(), "s3cret-of-") {
		t.Error("a reply has a value")
	}
	if strings.Contains(d.log.text(), "s3cret-of-") {
		t.Error("the log has a value")
	}
}
