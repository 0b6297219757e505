package main

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	"pgregory.net/rapid"

	"github.com/microvmd/microvm/internal/fault"
	microvm "github.com/microvmd/microvm/sdk/go"
)

func TestCleanTextCannotActOnATerminal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "text")
		got := clean(text)
		for _, r := range got {
			if r < 0x20 || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
				t.Fatalf("%q became %q", text, got)
			}
		}
		if clean(got) != got {
			t.Fatalf("%q is cleaned twice", got)
		}
	})
	if got := clean("a\x1b[31m\u202eb\nc"); got != `a\u001b[31m\u202eb\u000ac` {
		t.Fatalf("got %q", got)
	}
}

func TestJSONIsCleanAndTheSame(t *testing.T) {
	var b bytes.Buffer
	if err := printJSON(&b, map[string]string{"a": "\x1b\u009b\u202e<&>ä"}); err != nil {
		t.Fatal(err)
	}
	if want := "{\n  \"a\": \"\\u001b\\u009b\\u202e<&>ä\"\n}\n"; b.String() != want {
		t.Fatalf("got %q, want %q", b.String(), want)
	}
}

func TestAgesAndSizes(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 59 * time.Second: "59s", time.Minute: "1m", 90 * time.Minute: "1h", 47 * time.Hour: "47h", 49 * time.Hour: "2d",
	} {
		if got := age(d); got != want {
			t.Errorf("age %v is %q, want %q", d, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 94371840: "90.0 MiB", 1 << 50: "1024.0 TiB"} {
		if got := size(n); got != want {
			t.Errorf("size %d is %q, want %q", n, got, want)
		}
	}
}

func TestProgressSpeaksAfterTwoSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		p := &progress{out: &b, show: true}
		done := p.wait("tea")
		time.Sleep(1900 * time.Millisecond) // the bubble's clock
		done()
		if b.Len() != 0 {
			t.Fatalf("said %q before two seconds", b.String())
		}
		done = p.wait("tea")
		time.Sleep(12500 * time.Millisecond)
		done()
		done() // may come twice
		if got, want := b.String(), "waiting for tea (2 s)\nwaiting for tea (12 s)\n"; got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
		b.Reset()
		p.terminal = true
		done = p.wait("tea")
		time.Sleep(2500 * time.Millisecond)
		done()
		if got, want := b.String(), "\rwaiting for tea (2 s)\x1b[K\r\x1b[K"; got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
		b.Reset()
		p.show = false
		p.wait("tea")()
		if b.Len() != 0 {
			t.Fatal("said something that nobody asked for")
		}
	})
}

type chosen int

func (c chosen) Error() string { return "chosen" }
func (c chosen) ExitCode() int { return int(c) }

func TestExitCodes(t *testing.T) {
	local := exec.Command("false").Run()
	for _, test := range []struct {
		name    string
		err     error
		began   bool
		program bool
		code    int
		text    string
	}{
		{"failed", errors.New("no luck"), true, false, 1, "error: no luck\n"},
		{"with a next step", hint(errors.New("no luck"), "try again"), true, false, 1, "error: no luck\n  fix: try again\n"},
		{"before it began", errors.New("odd"), false, false, 2, "error: odd\n  fix: microvm --help\n"},
		{"usage found later", fmt.Errorf("x: %w", usage("odd")), true, false, 2, "error: x: odd\n  fix: microvm --help\n"},
		{"of a program", errors.New("no luck"), true, true, 125, "error: no luck\n"},
		{"usage of a program", usage("odd"), false, true, 125, "error: odd\n  fix: microvm --help\n"},
		{"a code alone", &codeError{code: 7}, true, true, 7, ""},
		{"a code and why", &codeError{code: 124, err: errors.New("late")}, true, true, 124, "error: late\n"},
		{"of another verb", fmt.Errorf("x: %w", chosen(3)), true, false, 3, ""},
		{"of a program on this machine", fmt.Errorf("tar: %w", local), true, false, 1, "error: tar: exit status 1\n"},
		{"Ctrl-C", fmt.Errorf("x: %w", &interruption{2}), true, true, 130, "error: x: interrupted by SIGINT\n"},
		{"orders to the terminal", errors.New("a\x1b[2Jb"), true, false, 1, "error: a\\u001b[2Jb\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := &cobra.Command{Use: "microvm"}
			if test.program {
				cmd.Annotations = map[string]string{programAnnotation: "yes"}
			}
			var b bytes.Buffer
			if code := finish(cmd, test.err, test.began, &b); code != test.code {
				t.Errorf("code %d, want %d", code, test.code)
			}
			if !strings.HasPrefix(b.String(), test.text) || (test.text == "" && b.Len() > 0) {
				t.Errorf("text %q, want %q", b.String(), test.text)
			}
		})
	}
}

// Every code of the API leads to a next step: one of this program, or the API's
// own, which names what to do.
func TestEveryCodeHasANextStep(t *testing.T) {
	own := map[fault.Code]bool{ // the message of these names field and limit, and the fix the flag
		fault.ParameterMissing: true, fault.ParameterInvalid: true, fault.BodyInvalid: true, fault.RouteNotFound: true,
		fault.PayloadTooLarge: true,
	}
	for code := range fault.Codes() {
		e := &microvm.Error{Code: microvm.ErrorCode(code)}
		if !e.Code.Valid() {
			t.Errorf("the specification has no %s", code)
		}
		if fixRefused(e) == "" && !own[code] {
			t.Errorf("%s has no next step", code)
		}
	}
	for _, param := range []string{"mem_mib", "vcpus", "ttl_seconds", "timeout_seconds", "name", "tags.job", "cmd", "args.0", "cwd", "user", "env", "signal", "grace_seconds", "after"} {
		if fixRefused(&microvm.Error{Code: microvm.ErrorCodeParameterInvalid, Param: param}) == "" {
			t.Errorf("%s leads to no flag", param)
		}
	}
}
