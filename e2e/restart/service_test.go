package restart

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// The daemon that the host runs by itself.
const (
	service         = "microvmd.service"
	serviceSocket   = "/run/microvm/microvmd.sock"
	serviceInstance = "microvm"
)

// TestTheServiceKeepsItsSandboxes: what an operator does to the service, and a
// crash that systemd mends, are nothing to a sandbox.
func TestTheServiceKeepsItsSandboxes(t *testing.T) {
	client := microvm.New(microvm.WithSocket(serviceSocket))
	sb, err := client.Sandboxes.Create(t.Context(), microvm.SandboxCreate{Image: "python"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := client.Sandboxes.Delete(context.Background(), sb.ID); err != nil {
			t.Error(err)
		}
	})
	c := count(t, client, serviceInstance, sb.ID)
	for _, what := range []struct {
		name    string
		command []string
		another bool // it is another process afterwards
	}{
		{"restart", []string{"restart", service}, true},
		{"daemon-reload", []string{"daemon-reload"}, false},
		{"reload", []string{"reload", service}, false},
		{"kill -9", []string{"kill", "--kill-whom=main", "--signal=KILL", service}, true},
		{"stop and start", []string{"stop", service}, true},
	} {
		t.Run(what.name, func(t *testing.T) {
			before := mainPID(t)
			systemctl(t, what.command...)
			if what.command[0] == "stop" {
				systemctl(t, "start", service)
			}
			answers(t, client, before, what.another)
			c.t = t
			c.goesOnIn(client, serviceInstance)
		})
	}
}

func systemctl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("systemctl", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("systemctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func mainPID(t *testing.T) string {
	t.Helper()
	return systemctl(t, "show", "--property=MainPID", "--value", service)
}

// answers waits until the service answers, by another process or by the same.
func answers(t *testing.T, client *microvm.Client, before string, another bool) {
	t.Helper()
	for deadline := time.Now().Add(wait); ; time.Sleep(100 * time.Millisecond) { // between two looks
		now := mainPID(t)
		if now != "0" && (now != before) == another {
			if _, err := client.Health(t.Context()); err == nil && mainPID(t) == now {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("the service does not answer; its process is %s and was %s", now, before)
		}
	}
}
