package guest

import (
	"context"
	"crypto/rand"
	"flag"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
)

// Property tests run 250 cases unless the command line says otherwise.
func init() { _ = flag.Set("rapid.checks", "250") }

// box is an agent that serves a Unix socket, and the host's client of it.
type box struct {
	*guestwire.Client
	agent *Agent
	root  string
	sock  string
}

// newBox makes an agent that works in a temporary directory as the user who
// runs the tests, and configures it.
func newBox(t testing.TB, change ...func(*Config)) *box {
	t.Helper()
	b := newBareBox(t, change...)
	if _, err := b.Configure(t.Context(), configuration(1)); err != nil {
		t.Fatal(err)
	}
	return b
}

// newUserBox makes one whose programs run as a user of their own, which needs
// root.
func newUserBox(t testing.TB, change ...func(*Config)) *box {
	t.Helper()
	b := newBareBox(t, append(change, asUser)...)
	b.addUser(t)
	if _, err := b.Configure(t.Context(), configuration(1)); err != nil {
		t.Fatal(err)
	}
	return b
}

func asUser(c *Config) { c.SameUser = false }

// addUser makes the accounts root and user, uid 12345, in the directory of a
// box, and opens the way to it.
func (b *box) addUser(t testing.TB) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(b.root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"passwd": "root:x:0:0::/root:/bin/sh\nuser:x:12345:12346::/home/user:/bin/sh\n", "group": "extra:x:12347:user\n",
	} {
		if err := os.WriteFile(filepath.Join(b.root, "etc", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for dir := b.root; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func newBareBox(t testing.TB, change ...func(*Config)) *box {
	t.Helper()
	root := t.TempDir()
	conf := Config{Version: "test", Root: root, SameUser: true}
	for _, c := range change {
		c(&conf)
	}
	agent, err := New(conf)
	if err != nil {
		t.Fatal(err)
	}
	sock := filepath.Join(t.TempDir(), "agent.sock")
	listener, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- agent.Serve(listener) }()
	t.Cleanup(func() {
		if err := agent.Close(); err != nil {
			t.Error(err)
		}
		<-served
	})
	return &box{Client: newClient(t, sock, nil), agent: agent, root: root, sock: sock}
}

// newClient makes a client; wrap, where given, wraps each connection.
func newClient(t testing.TB, sock string, wrap func(net.Conn) net.Conn) *guestwire.Client {
	transport := &http.Transport{
		MaxResponseHeaderBytes: guestwire.MaxReplyHeader,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "unix", sock)
			if err == nil && wrap != nil {
				conn = wrap(conn)
			}
			return conn, err
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return guestwire.NewClient(transport)
}

func configuration(generation int64) guestwire.Configure {
	entropy := make([]byte, 32)
	_, _ = rand.Read(entropy)
	return guestwire.Configure{
		Generation: generation, Hostname: "box", TimeNS: time.Now().UnixNano(), Entropy: entropy,
		User: "user", Workdir: "/workspace", Env: map[string]string{"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
	}
}

// script is a Start of sh -c text.
func script(text string) guestwire.Start {
	return guestwire.Start{Cmd: "sh", Args: []string{"-c", text}}
}

// outcome is what a program left: the bytes of each stream from the offset at
// which they begin, and how it ended.
type outcome struct {
	out, err   []byte
	outAt      int64 // offset of the first byte of out
	exit       guestwire.Exit
	gaps       int
	stdoutNext int64
	stderrNext int64
}

// begin starts a program without waiting for anything that it says; what the
// reply holds of it already is not acknowledged.
func (b *box) begin(t testing.TB, id string, start guestwire.Start) (pid int, err error) {
	t.Helper()
	_, err = b.Start(t.Context(), id, start, guestwire.Sink{
		Started: func(s guestwire.Started) { pid = s.PID },
		Output:  func(guestwire.Frame) error { return nil },
	})
	return pid, err
}

// run starts a program and pulls until it is over.
func (b *box) run(t testing.TB, id string, start guestwire.Start) outcome {
	t.Helper()
	if _, err := b.begin(t, id, start); err != nil {
		t.Fatal(err)
	}
	return b.finish(t, id)
}

// finish pulls until the program is over, and before what was pulled already.
func (b *box) finish(t testing.TB, id string, before ...outcome) outcome {
	t.Helper()
	o := outcome{}
	if len(before) > 0 {
		o = before[0]
	}
	for !b.pull(t, id, &o) {
	}
	return o
}

// until pulls until the program has printed text.
func (b *box) until(t testing.TB, id, text string) outcome {
	t.Helper()
	var o outcome
	for !strings.Contains(string(o.out), text) {
		if b.pull(t, id, &o) {
			t.Fatalf("it ended before it printed %q: %q %q %+v", text, o.out, o.err, o.exit)
		}
	}
	return o
}

// pull pulls once, and says whether the program is over.
func (b *box) pull(t testing.TB, id string, o *outcome) bool {
	t.Helper()
	exit, err := b.Pull(t.Context(), id, guestwire.Pull{Stdout: o.stdoutNext, Stderr: o.stderrNext, WaitMS: guestwire.MaxPullWait}, guestwire.Sink{Output: o.take})
	if err != nil {
		t.Fatal(err)
	}
	if exit != nil {
		o.exit = *exit
	}
	return exit != nil
}

func (o *outcome) take(f guestwire.Frame) error {
	next, kept := &o.stdoutNext, &o.out
	if f.Type == guestwire.StderrFrame {
		next, kept = &o.stderrNext, &o.err
	}
	if f.Offset > *next {
		o.gaps++
		*kept = nil
	}
	if f.Type == guestwire.StdoutFrame && len(*kept) == 0 {
		o.outAt = f.Offset
	}
	*kept = append(*kept, f.Payload...)
	*next = f.Offset + int64(len(f.Payload))
	return nil
}

func (o outcome) code(t testing.TB) int {
	t.Helper()
	if o.exit.ExitCode == nil {
		t.Fatalf("no exit code: %+v", o.exit)
	}
	return *o.exit.ExitCode
}
