// Package terminal proves at a terminal, which tmux drives as a person would,
// that a program in a sandbox feels as one at the other end of ssh. It runs
// where people do: on the machine that the command line runs on.
package terminal

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// program is the command line under test, an absolute path.
var program string

func TestMain(m *testing.M) {
	path, err := filepath.Abs(os.Getenv("MICROVM_BIN"))
	if err == nil {
		_, err = exec.LookPath(path)
	}
	if err == nil {
		_, err = exec.LookPath("tmux")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "terminal tests need tmux, a host that is up, and MICROVM_BIN (make test-e2e):", err)
		os.Exit(1)
	}
	program = path
	os.Exit(m.Run())
}

func command(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput() //nolint:gosec // this checkout's
	if err != nil {
		t.Fatalf("microvm %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// sandbox makes one that is removed at the end.
func sandbox(t *testing.T, name string) {
	t.Helper()
	command(t, "sandbox", "create", "python", "--name", name, "--idle", "10m")
	t.Cleanup(func() { _ = exec.Command(program, "sandbox", "rm", name).Run() }) //nolint:gosec,noctx // this checkout's
}

// TestExecFeelsLikeSSH: size, resize, Ctrl-C that goes inside, the exit code that
// comes out, and a terminal that is as it was before.
func TestExecFeelsLikeSSH(t *testing.T) {
	sandbox(t, "e2e-terminal")
	s := newScreen(t, program)
	before := s.answer("before", "stty -g </dev/tty")
	s.runs("microvm exec -it e2e-terminal -- env PS1='inside$ ' bash --norc --noprofile")
	s.waits("inside$")
	if size := s.answer("size", "stty size"); size != "30 100" {
		t.Errorf("size inside is %q", size)
	}
	s.tmux("resize-window", "-x", "80", "-y", "20")
	s.runs("until [ \"$(stty size)\" = '20 80' ]; do sleep 0.1; done; echo re''sized")
	s.shows("resized")
	s.runs("echo wai''ting; sleep 1000")
	s.shows("waiting")
	s.presses("C-c")
	if code := s.answer("interrupted", "echo $?"); code != "130" {
		t.Errorf("after Ctrl-C $? is %q", code)
	}
	if user := s.answer("user", "id -un"); user != "user" {
		t.Errorf("it runs as %q", user)
	}
	s.runs("exit 7")
	s.waits(prompt)
	if code := s.answer("code", "echo $?"); code != "7" {
		t.Errorf("outside $? is %q", code)
	}
	if after := s.answer("after", "stty -g </dev/tty"); after != before {
		t.Errorf("the terminal is %s and was %s", after, before)
	}
}

var execution = regexp.MustCompile(`exe_[0-9A-Z]{26}`)

// TestDetachAndAttach: ~. leaves the program running, and attach shows the
// screen as it was, with the shell's state.
func TestDetachAndAttach(t *testing.T) {
	sandbox(t, "e2e-detach")
	s := newScreen(t, program)
	s.runs("microvm exec -it e2e-detach -- env PS1='inside$ ' bash --norc --noprofile")
	s.waits("inside$")
	s.runs("kept=for-later; echo on-the-''screen")
	s.shows("on-the-screen")
	s.types("~.")
	id := execution.FindString(s.shows("attach"))
	if id == "" {
		t.Fatalf("how to attach again is not said:\n%s", s.text())
	}
	s.runs("clear; tmux -L " + s.server + " clear-history")
	s.waits(prompt)
	s.runs("microvm execution attach e2e-detach " + id)
	s.shows("on-the-screen")
	if kept := s.answer("kept", "echo $kept"); kept != "for-later" {
		t.Errorf("the shell's variable is %q", kept)
	}
	s.runs("exit 3")
	s.waits(prompt)
	if code := s.answer("code", "echo $?"); code != "3" {
		t.Errorf("outside $? is %q", code)
	}
}

// TestShell: a sandbox for one shell, which goes with it.
func TestShell(t *testing.T) {
	s := newScreen(t, program)
	s.runs("microvm shell python")
	s.shows("$ ")
	if sum := s.answer("sum", "python3 -c 'print(6 * 7)'"); sum != "42" {
		t.Errorf("python says %q", sum)
	}
	host := s.answer("host", "hostname")
	if !strings.Contains(command(t, "sandbox", "ls"), strings.ToUpper(strings.TrimPrefix(host, "sb-"))) {
		t.Errorf("no sandbox of %q is listed", host)
	}
	s.runs("exit")
	s.waits(prompt)
	if code := s.answer("code", "echo $?"); code != "0" {
		t.Errorf("outside $? is %q", code)
	}
	if strings.Contains(command(t, "sandbox", "ls"), strings.ToUpper(strings.TrimPrefix(host, "sb-"))) {
		t.Errorf("the sandbox of %q is left", host)
	}
}
