package contract

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// stopping sends SIGTERM and returns when the daemon has begun to stop.
func (d *daemon) stopping(t *testing.T) {
	t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it stops", func() bool { return strings.Contains(d.log.text(), `"msg":"stopping`) })
}

// says wants a line of the log to hold all of this.
func (d *daemon) says(t *testing.T, wants ...string) {
	t.Helper()
	for line := range strings.Lines(d.log.text()) {
		if !slices.ContainsFunc(wants, func(want string) bool { return !strings.Contains(line, want) }) {
			return
		}
	}
	t.Errorf("no line with %q", wants)
}

// TestStopLeavesSandboxes: without drain a stop ends nothing and says so. That the
// next daemon goes on with them is a matter of real microVMs: the fake's end here,
// with their programs left to us.
func TestStopLeavesSandboxes(t *testing.T) {
	d := start(t, "--drain=false")
	s := spreadOut(t, d.local())
	before := d.programs()
	waiting := make(chan microvm.Execution, 1)
	go func() { // a caller that waits gets its answer: it still runs
		var exe microvm.Execution
		reply := request(t, d, d.key, "GET", "/v1/sandboxes/"+s.sandbox+"/executions/"+s.running+"?wait=60", "")
		if err := json.Unmarshal(reply.body, &exe); err != nil || reply.StatusCode != 200 {
			t.Errorf("the waiting caller: %d %s", reply.StatusCode, reply.body)
		}
		waiting <- exe
	}()
	eventually(t, "it waits", func() bool { return d.connections(t) > 0 })
	began := time.Now()
	if code := d.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	took := time.Since(began)
	if exe := <-waiting; exe.Status != "running" || exe.Finished != nil {
		t.Errorf("the waiting caller: %+v", exe)
	}
	if strings.Contains(d.log.text(), "cut off") || took > 20*time.Second {
		t.Errorf("it waited %s for its callers", took)
	}
	d.says(t, `"msg":"stopping`, "no new work", "sandboxes go on")
	d.says(t, `"msg":"stopped"`, `"sandboxes_left":1`)
	if text := d.log.text(); strings.Contains(text, "sandbox stopped") || strings.Contains(text, `"level":"ERROR"`) {
		t.Error("something was torn down, or went wrong")
	}
	if after := d.programs(); len(before) == 0 || !slices.Equal(before, after) {
		t.Errorf("programs were %v and are %v", before, after)
	}
	d.killPrograms(t)
	d.run(t)
	s.checkOver(t, d.local())
}

// connections counts those that the daemon's TCP listener has.
func (d *daemon) connections(t *testing.T) (n int) {
	t.Helper()
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	_, number, err := net.SplitHostPort(d.addr)
	if err != nil {
		t.Fatal(err)
	}
	decimal, err := strconv.Atoi(number)
	if err != nil {
		t.Fatal(err)
	}
	port := fmt.Sprintf(":%04X", decimal)
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > 3 && strings.HasSuffix(fields[1], port) && fields[3] == "01" {
			n++
		}
	}
	return n
}

// TestDrainSaysSo, and leaves nothing.
func TestDrainSaysSo(t *testing.T) {
	d := start(t, "--drain=false", "--drain")
	s := spreadOut(t, d.local())
	if code := d.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	d.says(t, `"msg":"stopping`, "no new work", "sandboxes are ended")
	d.says(t, `"msg":"sandbox stopped"`, s.sandbox, "host_restarted")
	d.says(t, `"msg":"stopped"`, `"sandboxes_left":0`)
	d.checkNoProgram(t)
	d.run(t)
	s.checkOver(t, d.local())
}

// TestStopDuringACreate: it gets its answer, and others that come are refused.
func TestStopDuringACreate(t *testing.T) {
	for _, drain := range []bool{false, true} {
		d := start(t, fmt.Sprintf("--drain=%t", drain))
		hold := filepath.Join(d.dir, "hold")
		if err := os.WriteFile(hold, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		answer := make(chan reply, 1)
		go func() { answer <- request(t, d, d.key, "POST", "/v1/sandboxes", `{"image":"python"}`) }()
		eventually(t, "it has begun", func() bool {
			list, err := d.local().Sandboxes.List(t.Context(), microvm.ListSandboxesParams{})
			return err == nil && len(list.Data) == 1 && list.Data[0].State == "starting"
		})
		d.stopping(t)
		refused := request(t, d, d.key, "POST", "/v1/sandboxes", `{"image":"python"}`)
		checkRefusal(t, refused, 503, "api_error", "shutting_down", "")
		if err := os.Remove(hold); err != nil {
			t.Fatal(err)
		}
		got := <-answer
		var sb microvm.Sandbox
		if err := json.Unmarshal(got.body, &sb); !drain && (err != nil || got.StatusCode != 201 || sb.State != "running") {
			t.Errorf("the create in flight: %d %s", got.StatusCode, got.body)
		}
		if drain && (got.StatusCode != 409 || !strings.Contains(string(got.body), "host_restarted")) {
			t.Errorf("the create in flight, when drained: %d %s", got.StatusCode, got.body)
		}
		if code := d.signal(t, syscall.SIGTERM); code != 0 {
			t.Errorf("exit code %d", code)
		}
		d.killPrograms(t)
	}
}
