package contract

import (
	"testing"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// TestBoot: a create is restored once the node has a template, boots when it
// asks for that all the same, and takes no other word.
func TestBoot(t *testing.T) {
	d := start(t)
	client := d.remote()
	made := func(spec microvm.SandboxCreate) microvm.SandboxBoot {
		t.Helper()
		sb := create(t, client, spec)
		if _, err := client.Sandboxes.Delete(t.Context(), sb.ID); err != nil || sb.Boot == nil {
			t.Fatalf("%+v %v", sb, err)
		}
		return *sb.Boot
	}
	shape := microvm.SandboxCreate{Image: "python", MemMib: ptr(192)}
	cold := shape
	cold.Boot = ptr(microvm.SandboxCreateBootCold)
	if boot := made(shape); boot != "cold" {
		t.Errorf("the first of its shape: %s", boot)
	}
	eventually(t, "one is restored", func() bool { return made(shape) == "snapshot" })
	if boot := made(cold); boot != "cold" {
		t.Errorf("one that asked to boot: %s", boot)
	}
	if boot := made(shape); boot != "snapshot" {
		t.Errorf("the next one: %s", boot)
	}
	for name, value := range map[string]string{"warm": `"warm"`, "snapshot": `"snapshot"`, "empty": `""`, "null": `null`, "other case": `"Cold"`, "a flag": `true`} {
		t.Run(name, func(t *testing.T) {
			reply := request(t, d, d.key, "POST", "/v1/sandboxes", `{"image":"python","boot":`+value+`}`)
			checkRefusal(t, reply, 400, "invalid_request_error", "parameter_invalid", "boot")
		})
	}
}
