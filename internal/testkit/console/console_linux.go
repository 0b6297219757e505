// Package console is a person at a terminal, for tests: a pseudo-terminal, a
// program on it, keys that are pressed and what the screen then shows. It knows
// nothing of what the program is.
package console

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds what must come by itself, on a machine that may be busy.
const patience = time.Minute

// Open makes a terminal with 50 rows and 132 columns: the side of who types, and
// that of the program. Both are closed when the test ends.
func Open(t *testing.T) (typist, program *os.File) {
	t.Helper()
	typist, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = typist.Close() })
	err = unix.IoctlSetPointerInt(int(typist.Fd()), unix.TIOCSPTLCK, 0)
	n, numErr := unix.IoctlGetInt(int(typist.Fd()), unix.TIOCGPTN)
	if err = errors.Join(err, numErr); err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Close() })
	Resize(t, typist, 50, 132)
	return typist, program
}

// Resize changes the size of a terminal; who runs on it gets SIGWINCH.
func Resize(t *testing.T, typist *os.File, rows, cols uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(typist.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
		t.Fatal(err)
	}
}

// Modes are a terminal's settings.
func Modes(t *testing.T, f *os.File) unix.Termios {
	t.Helper()
	m, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *m
}

// Raw reports whether keys pass a terminal as they are, and output, too.
func Raw(m unix.Termios) bool {
	return m.Lflag&(unix.ICANON|unix.ECHO|unix.ISIG|unix.IEXTEN) == 0 && m.Iflag&(unix.IXON|unix.ICRNL) == 0 && m.Oflag&unix.OPOST == 0
}

// Session is a program on a terminal of its own. One goroutine uses it.
type Session struct {
	Cmd    *exec.Cmd
	Typist *os.File
	Ended  chan struct{} // closed when the program was waited for

	t   *testing.T
	was unix.Termios // before the program began

	mu   sync.Mutex
	seen bytes.Buffer  // guarded by mu: all that the terminal showed
	at   int           // guarded by mu: behind what was expected
	more chan struct{} // closed at the next output; guarded by mu
}

// Start starts cmd on a terminal, as the leader of its session. When the test
// ends it is killed.
func Start(t *testing.T, cmd *exec.Cmd) *Session {
	t.Helper()
	typist, program := Open(t)
	s := &Session{Cmd: cmd, Typist: typist, Ended: make(chan struct{}), t: t, was: Modes(t, typist), more: make(chan struct{})}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	heed()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = cmd.Wait(); close(s.Ended) }()
	go s.read()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-s.Ended
		if t.Failed() {
			t.Logf("the terminal showed %q", s.Shown())
		}
	})
	return s
}

// heed makes signals that this process ignores, as one does under nohup or in the
// background of a script, ordinary ones for its children: a program begins with
// the default of what its parent handles, and ignores what its parent ignores.
func heed() {
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
}

func (s *Session) read() {
	buffer := make([]byte, 4096)
	for {
		n, err := s.Typist.Read(buffer)
		s.mu.Lock()
		s.seen.Write(buffer[:n])
		close(s.more)
		s.more = make(chan struct{})
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Shown is all that the terminal has shown.
func (s *Session) Shown() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen.String()
}

// Expect waits until the terminal has shown what matches, behind what was
// expected before, and returns it.
func (s *Session) Expect(pattern string) string {
	s.t.Helper()
	want := regexp.MustCompile(pattern)
	deadline := time.After(patience)
	for {
		s.mu.Lock()
		rest, more := s.seen.String()[s.at:], s.more
		found := want.FindStringIndex(rest)
		if found != nil {
			s.at += found[1]
		}
		s.mu.Unlock()
		if found != nil {
			return rest[found[0]:found[1]]
		}
		select {
		case <-more:
		case <-deadline:
			s.t.Fatalf("no %q in %q", pattern, rest)
		}
	}
}

// Press types keys.
func (s *Session) Press(keys string) {
	s.t.Helper()
	if _, err := s.Typist.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// Resize changes the terminal's size.
func (s *Session) Resize(rows, cols uint16) {
	s.t.Helper()
	Resize(s.t, s.Typist, rows, cols)
}

// Raw reports whether the program has made the terminal raw.
func (s *Session) Raw() bool {
	s.t.Helper()
	return Raw(Modes(s.t, s.Typist))
}

// End waits for the program's end, with a code (-1 is a signal) and the terminal
// as it was before.
func (s *Session) End(code int) {
	s.t.Helper()
	select {
	case <-s.Ended:
	case <-time.After(patience):
		s.t.Fatal("it does not end")
	}
	if got := s.Cmd.ProcessState.ExitCode(); got != code {
		s.t.Errorf("exit code %d, want %d", got, code)
	}
	if got := Modes(s.t, s.Typist); got != s.was {
		s.t.Errorf("the terminal was left as %+v, it was %+v", got, s.was)
	}
}
