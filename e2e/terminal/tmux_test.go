package terminal

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// screen is a terminal of tmux's with a shell in it: what a person would see and
// type at.
type screen struct {
	t      *testing.T
	server string
}

const prompt = "outside> "

// wait bounds the wait for a text; a guest of an emulated host is slow.
const wait = 3 * time.Minute

// newScreen opens one of 100 columns and 30 rows. program is this checkout's
// microvm, and is called so in it.
func newScreen(t *testing.T, program string) *screen {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink(program, filepath.Join(dir, "microvm")); err != nil {
		t.Fatal(err)
	}
	s := &screen{t: t, server: fmt.Sprintf("microvm-e2e-%d", os.Getpid())}
	s.tmux("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30",
		"env", "PATH="+dir+":"+os.Getenv("PATH"), "PS1="+prompt, "HISTFILE=", "bash", "--norc", "--noprofile")
	t.Cleanup(func() { _ = exec.Command("tmux", "-L", s.server, "kill-server").Run() }) //nolint:noctx // it ends at once
	s.waits(prompt)
	return s
}

func (s *screen) tmux(args ...string) string {
	s.t.Helper()
	out, err := exec.CommandContext(s.t.Context(), "tmux", append([]string{"-L", s.server}, args...)...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("tmux %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// types types a text as it is.
func (s *screen) types(text string) {
	s.t.Helper()
	s.tmux("send-keys", "-l", "--", text)
}

// presses presses keys by tmux's names.
func (s *screen) presses(keys ...string) {
	s.t.Helper()
	s.tmux(append([]string{"send-keys"}, keys...)...)
}

// runs clears the screen and types a line.
func (s *screen) runs(line string) {
	s.t.Helper()
	s.types(line)
	s.presses("Enter")
}

func (s *screen) text() string {
	s.t.Helper()
	return s.tmux("capture-pane", "-p", "-J", "-S", "-200")
}

// shows waits until the screen shows a text, and returns all that it shows.
func (s *screen) shows(text string) string {
	s.t.Helper()
	return s.until(fmt.Sprintf("no %q", text), func(all string) bool { return strings.Contains(all, text) })
}

// waits waits until a shell with that prompt waits for a command.
func (s *screen) waits(prompt string) {
	s.t.Helper()
	s.until(fmt.Sprintf("no prompt %q at the end", prompt), func(all string) bool {
		return strings.HasSuffix("\n"+strings.TrimSpace(all), "\n"+strings.TrimSpace(prompt))
	})
}

func (s *screen) until(missing string, holds func(all string) bool) string {
	s.t.Helper()
	for last := time.Now().Add(wait); ; time.Sleep(50 * time.Millisecond) { // between two looks
		all := s.text()
		if holds(all) {
			return all
		}
		if time.Now().After(last) {
			s.t.Fatalf("%s on the screen:\n%s", missing, all)
		}
	}
}

// answer runs a line that prints a word between two marks, and returns the word.
// What was typed has the marks in two pieces, so it is not taken for the answer.
func (s *screen) answer(mark, line string) string {
	s.t.Helper()
	s.runs(fmt.Sprintf(`echo "<%s""%s:$(%s)>"`, mark[:1], mark[1:], line))
	begin := "<" + mark + ":"
	all := s.shows(begin)
	_, rest, _ := strings.Cut(all, begin)
	word, _, _ := strings.Cut(rest, ">")
	return strings.TrimSpace(word)
}
