package execution_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/ident"
	"github.com/microvmd/microvm/internal/secret"
	"github.com/microvmd/microvm/internal/testkit"
)

// pattern is n bytes of which no two stretches are alike, and not text.
func pattern(n int) []byte {
	p := make([]byte, 0, n+sha256.Size)
	for sum := sha256.Sum256(nil); len(p) < n; sum = sha256.Sum256(sum[:]) {
		p = append(p, sum[:]...)
	}
	return p[:n]
}

func digest(p []byte) string {
	sum := sha256.Sum256(p)
	return hex.EncodeToString(sum[:]) + "  -\n"
}

// TestTextForStdin: all of it arrives, and then the end of it, whatever its size.
func TestTextForStdin(t *testing.T) {
	f := newFixture(t, testkit.GuestAgent(t.TempDir()))
	for _, size := range []int{1, 4096, 65536, 65537, execution.MaxInput + 1, execution.MaxStdin} {
		text := pattern(size)
		e := f.run(t, execution.Spec{Cmd: "sha256sum", Stdin: string(text)})
		out, err := f.Output(e)
		if err != nil || string(out.Stdout.Bytes) != digest(text) {
			t.Errorf("%d bytes: %+v %q %v", size, e, out.Stdout.Bytes, err)
		}
	}
	if e := f.run(t, execution.Spec{Cmd: "true", Stdin: strings.Repeat("x", execution.MaxStdin)}); *e.ExitCode != 0 { // nobody reads it
		t.Errorf("%+v", e)
	}
	_, err := f.Start(t.Context(), f.sb.ID, execution.Spec{Cmd: "true", Stdin: strings.Repeat("x", execution.MaxStdin+1)})
	var refusal *fault.Error
	if !errors.As(err, &refusal) || refusal.Param != "stdin" {
		t.Errorf("over the bound: %v", err)
	}
	if e := f.run(t, sh("cat; echo none")); e.StdoutBytes != int64(len("none\n")) { // without one it is empty
		t.Errorf("%+v", e)
	}
}

// TestStdinThatStaysOpen: pieces go on behind the text of the start; a repeat, or
// one that overlaps, adds nothing twice, and a gap is refused.
func TestStdinThatStaysOpen(t *testing.T) {
	f := newFixture(t, testkit.GuestAgent(t.TempDir()))
	e, err := f.Start(t.Context(), f.sb.ID, execution.Spec{Cmd: "cat", Stdin: "begin,", StdinOpen: true})
	if err != nil {
		t.Fatal(err)
	}
	send := func(offset int64, data string, end bool, want execution.Taken) {
		t.Helper()
		taken, err := f.Stdin(t.Context(), f.sb.ID, e.ID, execution.Input{Offset: offset, Data: []byte(data), Close: end})
		if err != nil || taken != want {
			t.Fatalf("%q at %d: %+v %v", data, offset, taken, err)
		}
	}
	send(6, "one,", false, execution.Taken{Offset: 10})
	send(6, "one,", false, execution.Taken{Offset: 10})
	send(6, "one,two,", false, execution.Taken{Offset: 14})
	var refusal *fault.Error
	if _, err := f.Stdin(t.Context(), f.sb.ID, e.ID, execution.Input{Offset: 15, Data: []byte("gap")}); !errors.As(err, &refusal) || refusal.Param != "offset" {
		t.Fatalf("a gap: %v", err)
	}
	if _, err := f.Stdin(t.Context(), f.sb.ID, e.ID, execution.Input{Offset: -1}); !errors.As(err, &refusal) || refusal.Param != "offset" {
		t.Fatalf("a negative offset: %v", err)
	}
	if _, err := f.Stdin(t.Context(), f.sb.ID, e.ID, execution.Input{Offset: 14, Data: make([]byte, execution.MaxInput+1)}); !errors.As(err, &refusal) || refusal.Param != "data" {
		t.Fatalf("too much at once: %v", err)
	}
	send(14, "three", true, execution.Taken{Offset: 19, Closed: true})
	if e, err = f.Wait(t.Context(), f.sb.ID, e.ID, time.Minute); err != nil || e.Status != execution.Exited || *e.ExitCode != 0 {
		t.Fatalf("%+v %v", e, err)
	}
	if out, err := f.Output(e); err != nil || string(out.Stdout.Bytes) != "begin,one,two,three" {
		t.Fatalf("%q %v", out.Stdout.Bytes, err)
	}
	if _, err := f.Stdin(t.Context(), f.sb.ID, e.ID, execution.Input{Offset: 19}); !fault.Is(err, fault.ExecutionNotRunning) {
		t.Errorf("after the end: %v", err)
	}
}

func TestStdinOfOneThatHasNone(t *testing.T) {
	f := newFixture(t, testkit.GuestAgent(t.TempDir()))
	e, err := f.Start(t.Context(), f.sb.ID, sh("exec sleep 600"))
	if err != nil {
		t.Fatal(err)
	}
	var refusal *fault.Error
	if _, err := f.Stdin(t.Context(), f.sb.ID, e.ID, execution.Input{Data: []byte("x")}); !errors.As(err, &refusal) || refusal.Param != "execution" {
		t.Errorf("stdin: %v", err)
	}
	if err := f.Resize(t.Context(), f.sb.ID, e.ID, execution.Size{Rows: 5, Cols: 5}); !fault.Is(err, fault.ExecutionNotTTY) {
		t.Errorf("resize: %v", err)
	}
}

// TestAProgramThatDoesNotRead holds up nobody: the text of its start waits on the
// disk, no piece is lost, and its end ends the waiting.
func TestAProgramThatDoesNotRead(t *testing.T) {
	dir := t.TempDir()
	f := newFixtureIn(t, dir, testkit.GuestAgent(t.TempDir()))
	text := pattern(execution.MaxStdin)
	gate := filepath.Join(t.TempDir(), "gate")
	e, err := f.Start(t.Context(), f.sb.ID, execution.Spec{Cmd: "sh", Args: []string{"-c", "until [ -e " + gate + " ]; do sleep 0.01; done; sha256sum"}, Stdin: string(text)})
	if err != nil {
		t.Fatal(err)
	}
	spool := filepath.Join(dir, ident.Host(f.sb.ID), ident.Host(e.ID), "stdin")
	if info, err := os.Stat(spool); err != nil || info.Size() != execution.MaxStdin || info.Mode().Perm() != 0o600 {
		t.Errorf("its text: %+v %v", info, err)
	}
	if other := f.run(t, sh("echo meanwhile")); *other.ExitCode != 0 {
		t.Errorf("%+v", other)
	}
	touch(t, gate)
	if e, err = f.Wait(t.Context(), f.sb.ID, e.ID, time.Minute); err != nil || e.Status != execution.Exited {
		t.Fatalf("%+v %v", e, err)
	}
	if out, err := f.Output(e); err != nil || string(out.Stdout.Bytes) != digest(text) {
		t.Errorf("%q %v", out.Stdout.Bytes, err)
	}
	if _, err := os.Stat(spool); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its text is left: %v", err)
	}
}

// TestTextForStdinOverARestart: the next daemon goes on where the program is.
func TestTextForStdinOverARestart(t *testing.T) {
	n := newNode(t, testkit.GuestAgent(t.TempDir()))
	text := pattern(execution.MaxStdin)
	gate := filepath.Join(t.TempDir(), "gate")
	first := n.start(n.store)
	e := first.begin(t, execution.Spec{
		Cmd: "sh", Args: []string{"-c", "head -c 100000 | sha256sum; until [ -e " + gate + " ]; do sleep 0.01; done; sha256sum"}, Stdin: string(text), Timeout: time.Hour,
	})
	eventually(t, func() bool {
		out, err := first.Output(e)
		return err != nil || len(out.Stdout.Bytes) > 0
	})
	first.leave(t, false)
	touch(t, gate)
	next := n.start(n.store)
	e, out := next.ended(t, e)
	// head may have read more than it passed on: what it read, and no more, is gone.
	lines := strings.SplitAfter(out, "\n")
	if e.Status != execution.Exited || len(lines) != 3 || lines[0] != digest(text[:100000]) {
		t.Fatalf("%+v %q", e, out)
	}
	found := false
	for more := 0; more <= 1<<17 && !found; more++ {
		found = lines[1] == digest(text[100000+more:])
	}
	if !found {
		t.Error("the rest of the text did not arrive as it was")
	}
	next.leave(t, true)
}

// TestATerminal: output, input, its size, and a byte that is a signal.
func TestATerminal(t *testing.T) {
	f := newFixture(t, testkit.GuestAgent(t.TempDir()))
	e, err := f.Start(t.Context(), f.sb.ID, execution.Spec{
		Cmd: "bash", Args: []string{"--norc", "-c", "tty >/dev/null && stty size; read line; echo \"got $line\"; trap 'stty size' WINCH; trap 'echo interrupted; exit 9' INT; echo ready; while :; do sleep 0.05; done"},
		TTY: &execution.Size{Rows: 31, Cols: 97},
	})
	if err != nil {
		t.Fatal(err)
	}
	f.says(t, e, "31 97\r\n")
	if _, err := f.Stdin(t.Context(), f.sb.ID, e.ID, execution.Input{Data: []byte("hello\n")}); err != nil {
		t.Fatal(err)
	}
	f.says(t, e, "got hello\r\nready\r\n")
	if err := f.Resize(t.Context(), f.sb.ID, e.ID, execution.Size{Rows: 10, Cols: 20}); err != nil {
		t.Fatal(err)
	}
	f.says(t, e, "10 20\r\n")
	var refusal *fault.Error
	if err := f.Resize(t.Context(), f.sb.ID, e.ID, execution.Size{Rows: 0, Cols: 20}); !errors.As(err, &refusal) || refusal.Param != "rows" {
		t.Errorf("no rows: %v", err)
	}
	if _, err := f.Stdin(t.Context(), f.sb.ID, e.ID, execution.Input{Offset: 6, Close: true}); !errors.As(err, &refusal) || refusal.Param != "close" {
		t.Errorf("a close: %v", err)
	}
	if _, err := f.Stdin(t.Context(), f.sb.ID, e.ID, execution.Input{Offset: 6, Data: []byte{3}}); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	if e, err = f.Wait(t.Context(), f.sb.ID, e.ID, time.Minute); err != nil || e.Status != execution.Exited || *e.ExitCode != 9 || e.StderrBytes != 0 {
		t.Errorf("%+v %v", e, err)
	}
	if out, err := f.Output(e); err != nil || !bytes.HasSuffix(out.Stdout.Bytes, []byte("interrupted\r\n")) {
		t.Errorf("%q %v", out.Stdout.Bytes, err)
	}
}

// TestEnv: an execution's own wins, and neither its record nor its row has it.
func TestEnv(t *testing.T) {
	f := newFixture(t, testkit.GuestAgent(t.TempDir()))
	e := f.run(t, execution.Spec{Cmd: "sh", Args: []string{"-c", "echo $TOKEN $HOME"}, Env: secret.Env{"TOKEN": "t0ken", "HOME": "/nowhere"}})
	if out, err := f.Output(e); err != nil || string(out.Stdout.Bytes) != "t0ken /nowhere\n" {
		t.Errorf("%q %v", out.Stdout.Bytes, err)
	}
	var refusal *fault.Error
	if _, err := f.Start(t.Context(), f.sb.ID, execution.Spec{Cmd: "true", Env: secret.Env{"A=B": "c"}}); !errors.As(err, &refusal) || refusal.Param != "env" {
		t.Errorf("a bad name: %v", err)
	}
}

// TestAStoppingDaemonSaysSo: what it leaves to the next one has not ended, and
// whoever sends input or a cancel is told to come again.
func TestAStoppingDaemonSaysSo(t *testing.T) {
	n := newNode(t, testkit.GuestAgent(t.TempDir()))
	first := n.start(n.store)
	e := first.begin(t, execution.Spec{Cmd: "sh", Args: []string{"-c", "head -c 1 >/dev/null; echo got; exec sleep 600"}, StdinOpen: true, Timeout: time.Hour})
	waiting := make(chan error, 1)
	go func() {
		_, err := first.Stdin(t.Context(), e.Sandbox, e.ID, execution.Input{Data: bytes.Repeat([]byte("x"), execution.MaxInput)})
		waiting <- err
	}()
	eventually(t, func() bool { // it is on its way
		out, err := first.Output(e)
		return err != nil || len(out.Stdout.Bytes) > 0
	})
	first.leave(t, false)
	if err := <-waiting; !fault.Is(err, fault.ShuttingDown) {
		t.Errorf("input under way: %v", err)
	}
	_, input := first.Stdin(t.Context(), e.Sandbox, e.ID, execution.Input{})
	_, cancel := first.Cancel(t.Context(), e.Sandbox, e.ID, execution.Cancel{})
	for name, err := range map[string]error{"input": input, "cancel": cancel} {
		if !fault.Is(err, fault.ShuttingDown) {
			t.Errorf("%s: %v", name, err)
		}
	}
	next := n.start(n.store)
	if e, err := next.Cancel(t.Context(), e.Sandbox, e.ID, execution.Cancel{}); err != nil || e.Status != execution.Canceled {
		t.Errorf("with the next daemon: %+v %v", e, err)
	}
	next.leave(t, true)
}
