package contract

import (
	"encoding/json"
	"testing"
	"time"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// TestStartAndWait: a program that ends within the wait costs one request, and
// one that does not goes on.
func TestStartAndWait(t *testing.T) {
	d := start(t)
	client := d.remote()
	sb := create(t, client, microvm.SandboxCreate{Image: "python"})
	path := "/v1/sandboxes/" + sb.ID + "/executions"
	begin := func(query, body string) microvm.Execution {
		t.Helper()
		got := request(t, d, d.key, "POST", path+query, body)
		var exe microvm.Execution
		if err := json.Unmarshal(got.body, &exe); err != nil || got.StatusCode != 201 || got.Header.Get("Location") != path+"/"+exe.ID {
			t.Fatalf("%d at %q: %s", got.StatusCode, got.Header.Get("Location"), got.body)
		}
		return exe
	}
	short := begin("?wait=60", `{"cmd":"sh","args":["-c","echo out; echo err >&2; exit 3"]}`)
	if short.Status != "exited" || short.ExitCode == nil || *short.ExitCode != 3 || short.Stdout != "out\n" || short.Stderr != "err\n" || short.Finished == nil {
		t.Errorf("a short program: %+v", short)
	}
	longer := begin("?wait=60", `{"cmd":"sh","args":["-c","echo out; sleep 0.5; echo more"]}`) // longer than a reply is held back
	if longer.Status != "exited" || longer.Stdout != "out\nmore\n" {
		t.Errorf("a longer program: %+v", longer)
	}
	if failed := begin("?wait=60", `{"cmd":"no-such-program"}`); failed.Status != "failed" || failed.Reason == nil || *failed.Reason != "command_not_found" {
		t.Errorf("no program: %+v", failed)
	}
	began := time.Now()
	long := begin("?wait=1", `{"cmd":"sh","args":["-c","echo begun; sleep 600"]}`)
	if waited := time.Since(began); long.Status != "running" || long.Stdout != "begun\n" || long.Finished != nil || waited < time.Second {
		t.Errorf("a long program, after %s: %+v", waited, long)
	}
	for _, query := range []string{"", "?wait=0"} {
		if exe := begin(query, `{"cmd":"sleep","args":["600"]}`); exe.Status != "running" {
			t.Errorf("no wait: %+v", exe)
		}
	}
	for _, query := range []string{"?wait=61", "?wait=-1", "?wait=soon"} {
		refused := request(t, d, d.key, "POST", path+query, `{"cmd":"true"}`)
		checkRefusal(t, refused, 400, "invalid_request_error", "parameter_invalid", "wait")
	}
	// A caller that waits is told when the sandbox goes.
	gone := make(chan microvm.Execution, 1)
	go func() {
		exe, err := client.Run(t.Context(), sb.ID, "sh", "-c", "touch begun; sleep 600")
		if err != nil {
			t.Error(err)
			exe = &microvm.Execution{}
		}
		gone <- *exe
	}()
	eventually(t, "it runs", func() bool {
		exe, err := client.Run(t.Context(), sb.ID, "test", "-e", "begun")
		return err == nil && exe.ExitCode != nil && *exe.ExitCode == 0
	})
	if _, err := client.Sandboxes.Delete(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	if exe := <-gone; exe.Status != "vanished" || exe.Reason == nil || *exe.Reason != "deleted" {
		t.Errorf("the one that waited: %+v", exe)
	}
}
