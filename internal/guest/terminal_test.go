package guest

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/microvmd/microvm/internal/guestwire"
)

// onTerminal is a script on a terminal of 24 rows and 80 columns.
func onTerminal(text string) guestwire.Start {
	start := script(text)
	start.TTY = &guestwire.Size{Rows: 24, Cols: 80}
	return start
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	o := b.run(t, "a", onTerminal("test -t 0 && test -t 1 && test -t 2 && echo three; stty size; echo $TERM; : </dev/tty && echo controls; echo errors >&2; stty -a | grep -ow iutf8; ps -o tpgid= -p $$ | grep -qw $$ && echo foreground; exit 3"))
	want := strings.ReplaceAll("three\n24 80\nxterm-256color\ncontrols\nerrors\niutf8\nforeground\n", "\n", "\r\n")
	if string(o.out) != want || len(o.err) != 0 || o.exit.StderrBytes != 0 || o.code(t) != 3 {
		t.Errorf("got %q %q %+v", o.out, o.err, o.exit)
	}
	start := onTerminal("echo $TERM")
	start.Env = map[string]string{"TERM": "dumb"}
	if o := b.run(t, "b", start); string(o.out) != "dumb\r\n" {
		t.Errorf("TERM of the caller: %q", o.out)
	}
	if o := b.run(t, "c", script("echo $TERM")); string(o.out) != "\n" {
		t.Errorf("TERM without a terminal: %q", o.out)
	}
	for id, size := range map[string]guestwire.Size{"rows": {Rows: 0, Cols: 80}, "columns": {Rows: 24, Cols: guestwire.MaxTerminal + 1}, "negative": {Rows: -1, Cols: 1}} {
		start := onTerminal("true")
		start.TTY = &size
		if _, err := b.begin(t, id, start); !guestwire.Refused(err, guestwire.BadRequest) {
			t.Errorf("%s: %v", id, err)
		}
	}
}

func TestTerminalBelongsToItsUser(t *testing.T) {
	t.Parallel()
	b := newUserBox(t)
	o := b.run(t, "a", onTerminal(`stat -c '%u %a' "$(tty)"; echo shown >"$(tty)"`))
	if string(o.out) != "12345 620\r\nshown\r\n" {
		t.Errorf("got %q", o.out)
	}
	start := onTerminal(`stat -c '%u %a' "$(tty)"`)
	start.User = "root"
	if o := b.run(t, "b", start); string(o.out) != "0 620\r\n" {
		t.Errorf("root: got %q", o.out)
	}
}

func TestKeysReachTheProgram(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	start := onTerminal("")
	start.Cmd, start.Args = "cat", nil
	b.must(t, "a", start)
	taken := b.feedAll(t, "a", 0, "hé\x7fello\n", false)
	if o := b.until(t, "a", "\nhello\r\n"); string(o.out) != "hé\b \bello\r\nhello\r\n" {
		t.Errorf("echo and output: %q", o.out)
	}
	if _, err := b.Stdin(t.Context(), "a", taken.Offset, nil, true, 0); !guestwire.Refused(err, guestwire.BadRequest) {
		t.Errorf("a close: %v", err)
	}
	b.feedAll(t, "a", taken.Offset, "\x04", false) // Ctrl-D
	if o := b.finish(t, "a"); o.code(t) != 0 {
		t.Errorf("end of file: %+v", o.exit)
	}
	start.Cmd, start.Args = "sleep", []string{"1000"}
	b.must(t, "b", start)
	b.feedAll(t, "b", 0, "\x03", false) // Ctrl-C
	if o := b.finish(t, "b"); o.exit.Signal != "SIGINT" {
		t.Errorf("interrupt: %+v", o.exit)
	}
}

// A terminal holds little: what is pasted waits for the program, and none of it
// is lost.
func TestPasteIsExact(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	const size = 300_000
	want := bytes.ReplaceAll(pattern(0, 0, size), []byte{0}, []byte{1})
	b.must(t, "a", onTerminal(fmt.Sprintf("stty raw -echo; echo ready; exec head -c %d", size)))
	o := b.until(t, "a", "ready\n")
	b.feedAll(t, "a", 0, string(want), false)
	if o := b.finish(t, "a", o); !bytes.Equal(bytes.TrimPrefix(o.out, []byte("ready\n")), want) {
		t.Errorf("%d bytes came out, %d went in", len(o.out), size)
	}
}

func TestResize(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.must(t, "a", onTerminal("trap 'stty size; exit 0' WINCH; echo ready; sleep 1000 & wait"))
	o := b.until(t, "a", "ready\r\n")
	for _, bad := range []guestwire.Size{{}, {Rows: guestwire.MaxTerminal + 1, Cols: 1}, {Rows: 1, Cols: -1}} {
		if err := b.Resize(t.Context(), "a", bad); !guestwire.Refused(err, guestwire.BadRequest) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if err := b.Resize(t.Context(), "a", guestwire.Size{Rows: 50, Cols: 132}); err != nil {
		t.Fatal(err)
	}
	if o := b.finish(t, "a", o); string(o.out) != "ready\r\n50 132\r\n" || o.code(t) != 0 {
		t.Errorf("got %q %+v", o.out, o.exit)
	}
	if err := b.Resize(t.Context(), "a", guestwire.Size{Rows: 1, Cols: 1}); err != nil {
		t.Errorf("after the end: %v", err)
	}
	if taken, err := b.Stdin(t.Context(), "a", 0, []byte("x"), false, long); err != nil || taken != (guestwire.StdinTaken{Offset: 1, Closed: true}) {
		t.Errorf("keys after the end: %+v %v", taken, err)
	}
	b.must(t, "b", script("true"))
	for id, want := range map[string]guestwire.Code{"b": guestwire.NoTerminal, "nobody": guestwire.NoExecution} {
		if err := b.Resize(t.Context(), id, guestwire.Size{Rows: 1, Cols: 1}); !guestwire.Refused(err, want) {
			t.Errorf("%s: %v", id, err)
		}
	}
}

// The program's exit is the end of a terminal too, with all that it wrote,
// whoever still holds it or writes to it.
func TestTerminalOutputIsWhole(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	o := b.run(t, "long", onTerminal("seq 1 20000"))
	if lines := strings.Split(string(o.out), "\r\n"); len(lines) != 20001 || lines[19999] != "20000" {
		t.Errorf("%d lines, gaps %d", len(lines), o.gaps)
	}
	for i := range 50 {
		for name, text := range map[string]string{
			"alone":          "echo done",
			"held":           "(trap '' HUP; exec sleep 1000) & echo done",
			"written to":     "(trap '' HUP; while echo noise; do :; done) & sleep 0.01; echo done",
			"closed earlier": "echo done; exec <&- >&- 2>&-; exit 0",
		} {
			id := fmt.Sprintf("%s-%d", strings.Fields(name)[0], i)
			o := b.run(t, id, onTerminal(text))
			if !strings.Contains(string(o.out), "done\r\n") || o.code(t) != 0 {
				t.Errorf("%s: got %q %+v", name, o.out, o.exit)
			}
			if err := b.Signal(t.Context(), id, "SIGKILL"); err != nil {
				t.Error(err)
			}
			if err := b.Forget(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
	}
}
