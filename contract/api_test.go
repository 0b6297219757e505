package contract

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// TestRefusals: every refusal has its status, one envelope, and says what to do.
func TestRefusals(t *testing.T) {
	d := start(t, "--slots", "2", "--max-vcpus", "2", "--max-mem-mib", "512", "--max-body-bytes", "1048576")
	client := d.remote()
	running := create(t, client, microvm.SandboxCreate{Image: "python", Name: ptr("taken")})
	stopped := create(t, client, microvm.SandboxCreate{Image: "python"})
	if _, err := client.Sandboxes.Delete(t.Context(), stopped.ID); err != nil {
		t.Fatal(err)
	}
	const nobody = "sb_01KBA3ZJ7M8QW2X4Y6V8T0R2P4"
	big := `{"path":"big","content":"` + strings.Repeat("A", 9<<20) + `"}`
	for _, c := range []struct {
		name, key, method, path, body string
		status                        int
		kind                          microvm.ErrorType
		code                          microvm.ErrorCode
		param                         string
	}{
		{"no key", "", "GET", "/v1/sandboxes", "", 401, "authentication_error", "token_missing", ""},
		{"another's key", "mvk_" + strings.Repeat("0", 64), "GET", "/v1/sandboxes", "", 401, "authentication_error", "token_invalid", ""},
		{"no key, no route", "", "GET", "/v1/nothing", "", 404, "invalid_request_error", "route_not_found", ""},
		{"no route", d.key, "GET", "/v1/nothing", "", 404, "invalid_request_error", "route_not_found", ""},
		{"no sandbox", d.key, "GET", "/v1/sandboxes/" + nobody, "", 404, "invalid_request_error", "sandbox_not_found", ""},
		{"no sandbox to delete", d.key, "DELETE", "/v1/sandboxes/" + nobody, "", 404, "invalid_request_error", "sandbox_not_found", ""},
		{"no execution", d.key, "GET", "/v1/sandboxes/" + running.ID + "/executions/exe_01KBA3ZM2N9RX3Y5Z7W9V1S3Q5", "", 404, "invalid_request_error", "execution_not_found", ""},
		{"no file", d.key, "GET", "/v1/sandboxes/" + running.ID + "/files?path=none", "", 404, "invalid_request_error", "file_not_found", ""},
		{"no image", d.key, "POST", "/v1/sandboxes", `{"image":"cobol"}`, 404, "invalid_request_error", "image_not_found", "image"},
		{"no JSON", d.key, "POST", "/v1/sandboxes", `{"image":`, 400, "invalid_request_error", "body_invalid", ""},
		{"unknown field", d.key, "POST", "/v1/sandboxes", `{"image":"python","vcpu":1}`, 400, "invalid_request_error", "parameter_invalid", "vcpu"},
		{"missing field", d.key, "POST", "/v1/sandboxes", `{}`, 400, "invalid_request_error", "parameter_missing", "image"},
		{"more vCPUs than a sandbox may have", d.key, "POST", "/v1/sandboxes", `{"image":"python","vcpus":3}`, 400, "invalid_request_error", "parameter_invalid", "vcpus"},
		{"more memory than a sandbox may have", d.key, "POST", "/v1/sandboxes", `{"image":"python","mem_mib":513}`, 400, "invalid_request_error", "parameter_invalid", "mem_mib"},
		{"a name that is taken", d.key, "POST", "/v1/sandboxes", `{"image":"python","name":"taken"}`, 409, "invalid_request_error", "resource_already_exists", "name"},
		{"a run in a stopped sandbox", d.key, "POST", "/v1/sandboxes/" + stopped.ID + "/executions", `{"cmd":"true"}`, 409, "invalid_request_error", "sandbox_not_running", ""},
		{"a file of a stopped sandbox", d.key, "GET", "/v1/sandboxes/" + stopped.ID + "/files?path=x", "", 409, "invalid_request_error", "sandbox_not_running", ""},
		{"a body too large", d.key, "POST", "/v1/sandboxes/" + running.ID + "/files", big, 413, "invalid_request_error", "payload_too_large", ""},
		{"a body too large, no key", "", "POST", "/v1/sandboxes/" + running.ID + "/files", big, 401, "authentication_error", "token_missing", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			checkRefusal(t, request(t, d, c.key, c.method, c.path, c.body), c.status, c.kind, c.code, c.param)
		})
	}

	t.Run("a full node", func(t *testing.T) {
		create(t, client, microvm.SandboxCreate{Image: "python"})
		reply := request(t, d, d.key, "POST", "/v1/sandboxes", `{"image":"python"}`)
		checkRefusal(t, reply, 429, "capacity_error", "node_at_capacity", "")
		if after, err := strconv.Atoi(reply.Header.Get("Retry-After")); err != nil || after < 1 {
			t.Errorf("Retry-After is %q", reply.Header.Get("Retry-After"))
		}
	})
}

type reply struct {
	*http.Response
	body []byte
}

func request(t *testing.T, d *daemon, key, method, path, body string) reply {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, d.url()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = got.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(got.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return reply{got, text}
}

func checkRefusal(t *testing.T, r reply, status int, kind microvm.ErrorType, code microvm.ErrorCode, param string) {
	t.Helper()
	var envelope microvm.ErrorReply
	if err := json.Unmarshal(r.body, &envelope); err != nil {
		t.Fatalf("status %d, body %.300q: %v", r.StatusCode, r.body, err)
	}
	e, its := envelope.Error, ""
	if e.Param != nil {
		its = *e.Param
	}
	if r.StatusCode != status || e.Type != kind || e.Code != code || its != param {
		t.Errorf("status %d, %s; want %d, %s, %s, %q", r.StatusCode, r.body, status, kind, code, param)
	}
	if !strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		t.Errorf("content type %q", r.Header.Get("Content-Type"))
	}
	if id := r.Header.Get("Request-Id"); id == "" || id != e.RequestID {
		t.Errorf("request id %q in the header, %q in the body", id, e.RequestID)
	}
	if e.Message == "" || !strings.HasSuffix(e.DocURL, "#"+string(code)) {
		t.Errorf("message %q, page %q", e.Message, e.DocURL)
	}
}

func create(t *testing.T, client *microvm.Client, spec microvm.SandboxCreate) *microvm.Sandbox {
	t.Helper()
	sb, err := client.Sandboxes.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// TestKeyAndSocketAreRootsOnly: both give the whole node.
func TestKeyAndSocketAreRootsOnly(t *testing.T) {
	d := start(t)
	for _, path := range []string{d.socket, filepath.Join(d.dir, "admin.key")} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o", path, info.Mode().Perm())
		}
	}
	// A start makes no second key.
	key := d.key
	d.stop(t)
	d.run(t)
	if d.key != key {
		t.Error("a restart changed the key")
	}
	if _, err := d.remote().Images.List(t.Context()); err != nil {
		t.Error(err)
	}
	health := request(t, d, "", "GET", "/v1/health", "")
	if health.StatusCode != http.StatusOK {
		t.Errorf("health wants a key: %d", health.StatusCode)
	}
	if text := d.log.text(); strings.Contains(text, key) {
		t.Error("the log holds the key")
	}
}

// TestTwoClientsAtOnce: one by the socket, one by TCP; what each runs is its own.
func TestTwoClientsAtOnce(t *testing.T) {
	d := start(t)
	var group sync.WaitGroup
	for name, client := range map[string]*microvm.Client{"local": d.local(), "remote": d.remote()} {
		group.Go(func() {
			sb, err := client.Sandboxes.Create(t.Context(), microvm.SandboxCreate{Image: "python", Tags: microvm.Tags{"of": name}})
			if err != nil {
				t.Error(err)
				return
			}
			var runs sync.WaitGroup
			for n := range 10 {
				runs.Go(func() {
					file := fmt.Sprint("file", n)
					if _, err := client.Files.Write(t.Context(), sb.ID, file, []byte(name)); err != nil {
						t.Error(err)
						return
					}
					exe, err := client.Run(t.Context(), sb.ID, "sh", "-c", fmt.Sprintf("cat %s; exit %d", file, n))
					if err != nil || exe.Stdout != name || exe.ExitCode == nil || *exe.ExitCode != n {
						t.Errorf("%s, run %d: %+v %v", name, n, exe, err)
					}
				})
			}
			runs.Wait()
		})
	}
	group.Wait()
	for _, client := range []*microvm.Client{d.local(), d.remote()} {
		list, err := client.Sandboxes.List(t.Context(), microvm.ListSandboxesParams{})
		if err != nil || len(list.Data) != 2 {
			t.Errorf("list: %+v %v", list, err)
		}
	}
}

// TestOneOfManyGetsAName: of creates with one name at once exactly one wins.
func TestOneOfManyGetsAName(t *testing.T) {
	d := start(t)
	results := make(chan error)
	for n := range 8 {
		client := d.local()
		if n%2 == 0 {
			client = d.remote()
		}
		go func() {
			_, err := client.Sandboxes.Create(t.Context(), microvm.SandboxCreate{Image: "python", Name: ptr("one")})
			results <- err
		}()
	}
	won := 0
	for range 8 {
		switch err := <-results; {
		case err == nil:
			won++
		case !microvm.HasCode(err, "resource_already_exists"):
			t.Error(err)
		}
	}
	if won != 1 {
		t.Errorf("%d got the name", won)
	}
}

// TestALostCallerEndsNothing: an execution is not its caller's connection.
func TestALostCallerEndsNothing(t *testing.T) {
	d := start(t)
	client := d.remote()
	sb := create(t, client, microvm.SandboxCreate{Image: "python"})
	exe, err := client.Executions.Create(t.Context(), sb.ID, microvm.ExecutionCreate{Cmd: "sh", Args: []string{"-c", "until test -e go; do sleep 0.02; done; echo went on"}})
	if err != nil || exe.Status != "running" {
		t.Fatalf("%+v %v", exe, err)
	}
	lost, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := client.Executions.Wait(lost, sb.ID, exe.ID); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a wait whose caller has gone: %v", err)
	}
	if _, err := client.Files.Write(t.Context(), sb.ID, "go", nil); err != nil {
		t.Fatal(err)
	}
	exe, err = client.Executions.Wait(t.Context(), sb.ID, exe.ID)
	if err != nil || exe.Stdout != "went on\n" || exe.ExitCode == nil || *exe.ExitCode != 0 {
		t.Fatalf("%+v %v", exe, err)
	}
}

// TestTTLAndDelete: each ending of a sandbox is told as itself.
func TestTTLAndDelete(t *testing.T) {
	d := start(t)
	client := d.remote()
	for reason, spec := range map[microvm.ExecutionReason]microvm.SandboxCreate{
		"ttl":     {Image: "python", TTLSeconds: ptr(1)},
		"deleted": {Image: "python"},
	} {
		sb := create(t, client, spec)
		exe, err := client.Executions.Create(t.Context(), sb.ID, microvm.ExecutionCreate{Cmd: "sleep", Args: []string{"600"}})
		if err != nil {
			t.Fatal(err)
		}
		if reason == "deleted" {
			if _, err := client.Sandboxes.Delete(t.Context(), sb.ID); err != nil {
				t.Fatal(err)
			}
		}
		exe, err = client.Executions.Wait(t.Context(), sb.ID, exe.ID)
		if err != nil || exe.Status != "vanished" || exe.Reason == nil || *exe.Reason != reason || exe.ExitCode != nil {
			t.Errorf("%s: %+v %v", reason, exe, err)
		}
		// A delete of what ends, or has ended, returns when nothing is left.
		gone, err := client.Sandboxes.Delete(t.Context(), sb.ID)
		if err != nil || gone.State != "stopped" || gone.Reason == nil || string(*gone.Reason) != string(reason) {
			t.Errorf("%s: %+v %v", reason, gone, err)
		}
	}
	d.checkNoProgram(t)
}
