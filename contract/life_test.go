package contract

import (
	"errors"
	"strings"
	"testing"
	"time"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// stoppedAs waits until a sandbox has stopped, by looking, which is no use of
// it, and holds its ending against what it must be.
func stoppedAs(t *testing.T, client *microvm.Client, id string, stop microvm.SandboxStopReason, reason microvm.SandboxReason) {
	t.Helper()
	var sb *microvm.Sandbox
	eventually(t, "sandbox stops: "+string(stop), func() bool {
		var err error
		if sb, err = client.Sandboxes.Retrieve(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		return sb.State == "stopped"
	})
	if sb.StopReason == nil || *sb.StopReason != stop || sb.Reason == nil || *sb.Reason != reason || sb.Stopped == nil {
		t.Errorf("it stopped as %+v", sb)
	}
}

func runs(t *testing.T, client *microvm.Client, id string) {
	t.Helper()
	if sb, err := client.Sandboxes.Retrieve(t.Context(), id); err != nil || sb.State != "running" {
		t.Fatalf("%+v %v", sb, err)
	}
}

// TestIdle: a sandbox that is not used stops, one that is used does not, and one
// that never idles does not.
func TestIdle(t *testing.T) {
	d := start(t)
	client := d.remote()
	alone := create(t, client, microvm.SandboxCreate{Image: "python", IdleSeconds: ptr(1)})
	stoppedAs(t, client, alone.ID, "idle", "idle")
	if since := time.Since(alone.Created); since < time.Second {
		t.Errorf("it idled for %s only", since)
	}
	_, err := client.Run(t.Context(), alone.ID, "true")
	var refused *microvm.Error
	if !errors.As(err, &refused) || refused.Code != "sandbox_not_running" || !strings.Contains(refused.Message, "idle") {
		t.Errorf("a run in it: %v", err)
	}

	// The one that nobody touches was made last and stops first.
	never := create(t, client, microvm.SandboxCreate{Image: "python", IdleSeconds: ptr(-1)})
	touched := create(t, client, microvm.SandboxCreate{Image: "python", IdleSeconds: ptr(4)})
	untouched := create(t, client, microvm.SandboxCreate{Image: "python", IdleSeconds: ptr(4)})
	eventually(t, "the one that is not touched stops", func() bool {
		if _, err := client.Sandboxes.Touch(t.Context(), touched.ID); err != nil {
			t.Fatal(err)
		}
		sb, err := client.Sandboxes.Retrieve(t.Context(), untouched.ID)
		return err == nil && sb.State == "stopped"
	})
	stoppedAs(t, client, untouched.ID, "idle", "idle")
	sb, err := client.Sandboxes.Touch(t.Context(), touched.ID)
	if err != nil || sb.State != "running" || !sb.Expires.Equal(touched.Expires) {
		t.Errorf("the one that is touched: %+v %v", sb, err)
	}
	stoppedAs(t, client, touched.ID, "idle", "idle")
	runs(t, client, never.ID)
}

// TestAnExecutionIsUse: a sandbox whose program runs does not idle, whether
// somebody waits for it or not.
func TestAnExecutionIsUse(t *testing.T) {
	d := start(t)
	client := d.remote()
	used := create(t, client, microvm.SandboxCreate{Image: "python", IdleSeconds: ptr(1)})
	exe, err := client.Executions.Create(t.Context(), used.ID, microvm.ExecutionCreate{
		Cmd: "sh", Args: []string{"-c", "until test -e go; do sleep 0.02; done; echo outlived it"},
	})
	if err != nil {
		t.Fatal(err)
	}
	// One that is made later and used by nobody has idled: so would this one have.
	idle := create(t, client, microvm.SandboxCreate{Image: "python", IdleSeconds: ptr(1)})
	stoppedAs(t, client, idle.ID, "idle", "idle")
	runs(t, client, used.ID)
	if _, err := client.Files.Write(t.Context(), used.ID, "go", nil); err != nil {
		t.Fatal(err)
	}
	exe, err = client.Executions.Wait(t.Context(), used.ID, exe.ID)
	if err != nil || exe.Status != "exited" || exe.Stdout != "outlived it\n" {
		t.Errorf("%+v %v", exe, err)
	}
	stoppedAs(t, client, used.ID, "idle", "idle") // its time began when the program had ended
}

// TestWhatIsLeftInTheBackgroundIsNoUse: the execution has ended.
func TestWhatIsLeftInTheBackgroundIsNoUse(t *testing.T) {
	d := start(t)
	client := d.remote()
	sb := create(t, client, microvm.SandboxCreate{Image: "python", IdleSeconds: ptr(1)})
	exe, err := client.Run(t.Context(), sb.ID, "sh", "-c", "touch here; while test -e here; do sleep 0.05; done >/dev/null 2>&1 &")
	if err != nil || exe.Status != "exited" {
		t.Fatalf("%+v %v", exe, err)
	}
	if len(d.programs()) == 0 {
		t.Error("nothing is left in the background")
	}
	stoppedAs(t, client, sb.ID, "idle", "idle")
	// The fake kills no program whose parent has ended: this one ends with its files.
	eventually(t, "it has ended", func() bool { return len(d.programs()) == 0 })
}

// TestExtend: the end of a TTL moves later, never earlier, and never beyond the
// node's longest life.
func TestExtend(t *testing.T) {
	d := start(t, "--max-ttl", "1h")
	client := d.remote()
	extended := create(t, client, microvm.SandboxCreate{Image: "python", TTLSeconds: ptr(2)})
	before := time.Now()
	sb, err := client.Sandboxes.Extend(t.Context(), extended.ID, 1800)
	if err != nil {
		t.Fatal(err)
	}
	const slack = 2 * time.Second // the clock shown may be corrected meanwhile
	if early, late := before.Add(30*time.Minute-slack), time.Now().Add(30*time.Minute+slack); sb.Expires.Before(early) || sb.Expires.After(late) {
		t.Errorf("it expires at %s, want %s to %s", sb.Expires, early, late)
	}
	again, err := client.Sandboxes.Extend(t.Context(), extended.ID, 60)
	if err != nil || again.Expires.Sub(sb.Expires).Abs() > slack {
		t.Errorf("a shorter one moved it from %s: %+v %v", sb.Expires, again, err)
	}
	beyond := request(t, d, d.key, "POST", "/v1/sandboxes/"+extended.ID+"/extend", `{"ttl_seconds":3600}`)
	checkRefusal(t, beyond, 400, "invalid_request_error", "parameter_invalid", "ttl_seconds")
	if text := string(beyond.body); !strings.Contains(text, "ttl_seconds must be at most 35") || !strings.Contains(text, "3600 s") {
		t.Errorf("the message lacks the bound: %s", text)
	}
	if sb, err := client.Sandboxes.Retrieve(t.Context(), extended.ID); err != nil || sb.Expires.Sub(again.Expires).Abs() > slack {
		t.Errorf("a refused one moved it from %s: %+v %v", again.Expires, sb, err)
	}
	// One that is made later with the same TTL, and not extended, has expired.
	plain := create(t, client, microvm.SandboxCreate{Image: "python", TTLSeconds: ptr(2)})
	stoppedAs(t, client, plain.ID, "expired", "ttl")
	runs(t, client, extended.ID)
}

// TestLifeRefusals: what a sandbox's life may not be.
func TestLifeRefusals(t *testing.T) {
	d := start(t, "--max-ttl", "1h")
	client := d.remote()
	running := create(t, client, microvm.SandboxCreate{Image: "python", IdleSeconds: ptr(-1)})
	stopped := create(t, client, microvm.SandboxCreate{Image: "python"})
	if _, err := client.Sandboxes.Delete(t.Context(), stopped.ID); err != nil {
		t.Fatal(err)
	}
	const boxes, nobody = "/v1/sandboxes", "sb_01KBA3ZJ7M8QW2X4Y6V8T0R2P4"
	for _, c := range []struct {
		name, path, body string
		status           int
		code             microvm.ErrorCode
		param            string
	}{
		{"an idle time of nothing", boxes, `{"image":"python","idle_seconds":0}`, 400, "parameter_invalid", "idle_seconds"},
		{"an idle time over the node's longest life", boxes, `{"image":"python","idle_seconds":3601}`, 400, "parameter_invalid", "idle_seconds"},
		{"an idle time over all", boxes, `{"image":"python","idle_seconds":2592001}`, 400, "parameter_invalid", "idle_seconds"},
		{"an idle time in words", boxes, `{"image":"python","idle_seconds":"never"}`, 400, "parameter_invalid", "idle_seconds"},
		{"extend by nothing", boxes + "/" + running.ID + "/extend", `{"ttl_seconds":0}`, 400, "parameter_invalid", "ttl_seconds"},
		{"extend back", boxes + "/" + running.ID + "/extend", `{"ttl_seconds":-60}`, 400, "parameter_invalid", "ttl_seconds"},
		{"extend beyond any life", boxes + "/" + running.ID + "/extend", `{"ttl_seconds":3601}`, 400, "parameter_invalid", "ttl_seconds"},
		{"extend without a time", boxes + "/" + running.ID + "/extend", `{}`, 400, "parameter_missing", "ttl_seconds"},
		{"extend the idle time", boxes + "/" + running.ID + "/extend", `{"ttl_seconds":60,"idle_seconds":60}`, 400, "parameter_invalid", "idle_seconds"},
		{"touch with a body", boxes + "/" + running.ID + "/touch", `{"idle_seconds":60}`, 400, "body_invalid", ""},
		{"extend what is not there", boxes + "/" + nobody + "/extend", `{"ttl_seconds":60}`, 404, "sandbox_not_found", ""},
		{"touch what is not there", boxes + "/" + nobody + "/touch", ``, 404, "sandbox_not_found", ""},
		{"extend what has stopped", boxes + "/" + stopped.ID + "/extend", `{"ttl_seconds":60}`, 409, "sandbox_not_running", ""},
		{"touch what has stopped", boxes + "/" + stopped.ID + "/touch", ``, 409, "sandbox_not_running", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			checkRefusal(t, request(t, d, d.key, "POST", c.path, c.body), c.status, "invalid_request_error", c.code, c.param)
		})
	}
	if list, err := client.Sandboxes.List(t.Context(), microvm.ListSandboxesParams{}); err != nil || len(list.Data) != 2 {
		t.Errorf("a refused create made something: %+v %v", list, err)
	}
}
