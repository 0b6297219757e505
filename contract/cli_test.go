package contract

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/microvmd/microvm/internal/testkit/console"
	microvm "github.com/microvmd/microvm/sdk/go"
)

// microvm is the command line, by TCP and key.
func (d *daemon) microvm(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(programs, "microvm"), args...)
	cmd.Env = append(os.Environ(), "MICROVM_URL="+d.url(), "MICROVM_API_KEY="+d.key, "TERM=vt100", "PS1=ready> ")
	return cmd
}

// TestCommandLineOnATerminal is a shell by microvm exec -it, from its start to its
// code, over a detach, and a daemon that restarts under it.
func TestCommandLineOnATerminal(t *testing.T) {
	d := start(t)
	sb := create(t, d.remote(), microvm.SandboxCreate{Image: "python", Name: ptr("work")})
	s := console.Start(t, d.microvm("exec", "-it", "-e", "PS1", "work", "--", "sh"))
	s.Expect("ready> ")
	if !s.Raw() {
		t.Error("the terminal is not raw")
	}
	s.Press("stty size; echo $TERM\r")
	s.Expect("\r\n50 132\r\nvt100\r\nready> ")
	s.Resize(40, 90)
	s.Press("until stty size | grep '40 90'; do sleep 0.05; done\r") // what is typed may overtake the window's new size
	s.Expect("\r\n40 90\r\nready> ")
	s.Press(`sh -c 'trap "exit 130" INT; echo be""gun; while :; do sleep 0.05; done'` + "\r") // it says when it heeds the key
	s.Expect("begun\r\n")
	s.Press("\x03")
	s.Expect(`\^C(\r\n)*ready> `)
	s.Press("echo st''ill here\r")
	s.Expect("still here\r\nready> ")

	s.Press("~.")
	words := strings.Fields(s.Expect(`detached; exe_\w+ goes on: microvm execution attach sb_\w+ exe_\w+ `))
	s.End(0)
	if words[len(words)-2] != sb.ID {
		t.Fatalf("%q", words)
	}
	id := words[len(words)-1]
	s = console.Start(t, d.microvm("execution", "attach", "work", id))
	s.Expect("still here\r\nready> ")
	s.Press("printf 'b\\001\\377y''tes'\r")
	if got := s.Expect("b\x01.ytes"); got != "b\x01\xffytes" {
		t.Errorf("the bytes became %q", got)
	}
	s.Press("exit 9\r")
	s.End(9)
	after := console.Start(t, d.microvm("execution", "attach", "work", id))
	after.Expect("still here")
	after.End(9)
}

// TestCommandLineShell is gone with its sandbox.
func TestCommandLineShell(t *testing.T) {
	d := start(t)
	s := console.Start(t, d.microvm("shell", "python", "-e", "PS1", "--name", "mine"))
	s.Press("tty; exit 3\r")
	s.Expect(`/dev/pts/\d+`)
	s.End(3)
	list, err := d.remote().Sandboxes.List(t.Context(), microvm.ListSandboxesParams{Name: ptr("mine")})
	if err != nil || len(list.Data) != 1 || list.Data[0].State != microvm.SandboxStateStopped {
		t.Fatalf("%+v %v", list, err)
	}
}

// TestCommandLineInterrupts: Ctrl-C gives the program a chance, a second one none.
func TestCommandLineInterrupts(t *testing.T) {
	d := start(t)
	client := d.remote()
	sb := create(t, client, microvm.SandboxCreate{Image: "python", Name: ptr("work")})
	newest := func() *microvm.Execution {
		t.Helper()
		list, err := client.Executions.List(t.Context(), sb.ID, microvm.ListExecutionsParams{Limit: ptr(1)})
		if err != nil || len(list.Data) != 1 {
			t.Fatalf("%+v %v", list, err)
		}
		return &list.Data[0]
	}

	s := console.Start(t, d.microvm("exec", "work", "--", "sh", "-c", `trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done`))
	s.Expect("ready")
	s.Press("\x03") // the terminal is not raw: it makes a signal of it
	s.Expect("caught")
	s.Expect("error: sh: interrupted by SIGINT")
	s.End(130)
	if exe := newest(); exe.Status != microvm.ExecutionStatusCanceled || exe.ExitCode == nil || *exe.ExitCode != 5 {
		t.Errorf("%+v", exe)
	}

	s = console.Start(t, d.microvm("exec", "work", "--", "sh", "-c", `trap '' INT; echo ready; while :; do sleep 0.05; done`))
	s.Expect("ready")
	s.Press("\x03")
	s.Expect("SIGINT was sent to the program, which has 10 s to end; once more kills it")
	s.Press("\x03")
	s.End(130)
	if exe := newest(); exe.Status != microvm.ExecutionStatusCanceled || exe.Signal == nil || *exe.Signal != "SIGKILL" {
		t.Errorf("%+v", exe)
	}

	// One that is not followed any more goes on; so does one on a terminal.
	s = console.Start(t, d.microvm("exec", "-it", "work", "--", "sh", "-c", "echo ready; sleep 600"))
	s.Expect("ready")
	_ = s.Cmd.Process.Signal(syscall.SIGHUP)
	s.End(129)
	if exe := newest(); exe.Ended() {
		t.Errorf("%+v", exe)
	}
}
