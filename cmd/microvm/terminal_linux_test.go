package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/term"

	"github.com/microvmd/microvm/internal/testkit/console"
	microvm "github.com/microvmd/microvm/sdk/go"
)

// session is the program on a terminal, with a fake node.
type session struct {
	*console.Session
	t    *testing.T
	node *fakeNode
}

func newNode(t *testing.T) *fakeNode {
	t.Helper()
	node := newFakeNode()
	t.Cleanup(node.close)
	var out bytes.Buffer
	if code, text := inProcess(t.Context(), node, &out, "sandbox", "create", "python", "--name", "work"); code != 0 {
		t.Fatal(text)
	}
	return node
}

func onPTY(t *testing.T, node *fakeNode, args ...string) *session {
	t.Helper()
	cmd := exec.Command("microvm", args...)
	cmd.Env = append(os.Environ(), "MICROVM_URL="+node.server.URL, "MICROVM_API_KEY="+fakeKey, "TERM=xterm-test")
	return &session{console.Start(t, cmd), t, node}
}

func (s *session) process() *process {
	s.node.mu.Lock()
	defer s.node.mu.Unlock()
	return s.node.newest()
}

func TestExecOnATerminal(t *testing.T) {
	s := onPTY(t, newNode(t), "exec", "-it", "work", "--", "keys")
	s.Expect("TERM=xterm-test\r\n")
	s.Expect("size 50x132\r\n")
	if !s.Raw() {
		t.Error("the terminal is not raw")
	}
	if got := s.process().exe.TimeoutSeconds; got != terminalTimeout {
		t.Errorf("its timeout is %d s", got)
	}
	s.Press("a")
	s.Expect(`key "a"\r\n`)
	for _, key := range []string{"\x03", "\x1a", "\x1c", "\x04", "\x13", "\x00", "\xff"} { // Ctrl-C, Z, \, D, S, @, and no UTF-8
		s.Press(key)
		s.Expect(regexp.QuoteMeta(fmt.Sprintf("key %q\r\n", key)))
	}
	s.Resize(30, 100)
	s.Expect("size 30x100\r\n")
	s.Resize(65535, 0) // none: not sent
	s.Resize(65535, 1001)
	s.Expect("size 1000x1000\r\n")
	s.Press("q")
	s.Expect("bye\r\n")
	s.End(3)
	if n := len(s.process().cancels); n != 0 {
		t.Errorf("it was cancelled %d times", n)
	}
}

// A program that has ended before anybody could look is shown all the same.
func TestAProgramThatEndsAtOnce(t *testing.T) {
	s := onPTY(t, newNode(t), "exec", "-it", "work", "--", "instant")
	s.Expect("at once")
	s.End(8)
}

// What is typed before the program is there waits for it.
func TestKeysBeforeTheProgram(t *testing.T) {
	node := newNode(t)
	gate, asked := node.gate("GET terminal"), node.event("GET terminal")
	s := onPTY(t, node, "exec", "-t", "work", "--", "keys")
	<-asked
	s.Press("a")
	close(gate)
	s.Expect(`key "a"\r\n`)
	s.Press("q")
	s.End(3)
}

func TestDetachAndAttach(t *testing.T) {
	node := newNode(t)
	s := onPTY(t, node, "exec", "-it", "work", "--", "keys")
	s.Expect("size 50x132")
	s.Press("first")
	s.Expect(`key "first"`)
	s.Press("\r~?")
	s.Expect(`\[at the beginning of a line \(press Enter first\): ~\. detaches`)
	s.Press("\r~.")
	words := strings.Fields(s.Expect(`detached; exe_\w+ goes on: microvm execution attach sb_\w+ exe_\w+ `))
	s.End(0)
	p := s.process()
	if !p.await(func() bool { return p.drops == 1 }) {
		t.Error("the node was not told that the terminal leaves")
	}

	s = onPTY(t, node, append([]string{"execution"}, words[len(words)-3:]...)...)
	s.Expect(`TERM=xterm-test`) // the end of what it printed is shown again
	s.Expect(`key "first"`)
	s.Press("~~")
	s.Expect(`key "~"`)
	s.Press("q")
	s.Expect("bye")
	s.End(3)

	// One that has ended is shown, with its code, and needs no terminal.
	s = onPTY(t, node, append([]string{"execution"}, words[len(words)-3:]...)...)
	s.Expect("bye")
	s.End(3)
}

func TestTheTerminalIsGivenBack(t *testing.T) {
	node := newNode(t)
	for sent, code := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGHUP: 129, syscall.SIGINT: 130, syscall.SIGQUIT: 2} {
		t.Run(sent.String(), func(t *testing.T) {
			s := onPTY(t, node, "exec", "-it", "work", "--", "keys")
			s.Expect("size 50x132")
			if err := s.Cmd.Process.Signal(sent); err != nil {
				t.Fatal(err)
			}
			if sent != syscall.SIGQUIT {
				s.Expect(`exe_\w+ may still run: microvm execution attach `)
			}
			s.End(code)
			if p := s.process(); len(p.cancels) > 0 || p.exe.Ended() {
				t.Errorf("the program was not left alone: %+v", p.exe)
			}
		})
	}
	t.Run("execution deleted", func(t *testing.T) {
		s := onPTY(t, node, "exec", "-it", "work", "--", "keys")
		s.Expect("size 50x132")
		p := s.process()
		p.because(microvm.ExecutionStatusVanished, microvm.ExecutionReasonTTL)
		s.Expect(`error: keys: the sandbox was taken away \(its TTL ended\)`)
		s.End(125)
	})
	t.Run("panic", func(t *testing.T) {
		typist, program := console.Open(t)
		was := console.Modes(t, typist)
		local, err := openTerminal(program, io.Discard, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		restore, err := local.raw()
		if err != nil {
			t.Fatal(err)
		}
		defer restore()
		func() {
			defer func() {
				if got := recover(); got != "a fault" {
					t.Errorf("the panic became %v", got)
				}
			}()
			defer local.guard()
			if !console.Raw(console.Modes(t, typist)) {
				t.Error("the terminal is not raw")
			}
			panic("a fault")
		}()
		if got := console.Modes(t, typist); got != was {
			t.Error("the terminal was left raw")
		}
	})
}

func TestATerminalWhoseConnectionBreaks(t *testing.T) {
	s := onPTY(t, newNode(t), "exec", "-it", "work", "--", "keys")
	s.Expect("size 50x132")
	for range 3 {
		s.Press("X")
		s.Expect("cutting\r\n")
		s.Expect(`\[the connection is lost, the program goes on; `)
		s.Expect(`\[attached again\]`)
		s.Press("b")
		s.Expect(`key "b"`)
	}
	// What is typed into the void goes nowhere, and the user was told so.
	node := s.node
	gate := node.gate("GET terminal")
	s.Press("X")
	s.Expect(`keys are not sent until then`)
	s.Press("rm -rf /\r~?")
	s.Expect(`~\? shows this`) // what came before it was taken
	close(gate)
	s.Expect(`\[attached again\]`)
	s.Press("q")
	s.Expect("bye")
	s.End(3)
	if got := s.Shown(); strings.Count(got, "cutting") != 4 || strings.Count(got, `key "b"`) != 3 || strings.Contains(got, "-rf") {
		t.Errorf("something was shown twice, or sent: %q", got)
	}
}

// A node that says nothing more is left all the same.
func TestDetachFromANodeThatHangs(t *testing.T) {
	node := newNode(t)
	stuck := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/terminal") {
			node.server.Config.Handler.ServeHTTP(w, r)
			return
		}
		socket, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer socket.CloseNow()
		_ = socket.Write(r.Context(), websocket.MessageBinary, []byte("stuck\r\n"))
		<-stuck // and reads nothing
	}))
	defer server.Close()
	defer close(stuck)
	s := onPTY(t, &fakeNode{server: server}, "exec", "-it", "work", "--", "keys")
	s.Expect("stuck")
	for range 64 { // more than one read of the terminal takes
		s.Press(strings.Repeat("x", 4000))
	}
	s.Press("\r~.")
	s.Expect("detached; ")
	s.End(0)

	// The terminal is usable meanwhile: who is asked to end twice may end at once.
	s = onPTY(t, &fakeNode{server: server}, "exec", "-it", "work", "--", "keys")
	s.Expect("stuck")
	_ = s.Cmd.Process.Signal(syscall.SIGTERM)
	for s.Raw() {
		time.Sleep(time.Millisecond) // the kernel tells nobody of a change
	}
	select {
	case <-s.Ended:
		t.Error("the terminal was raw to the end")
	default:
	}
	_ = s.Cmd.Process.Signal(syscall.SIGTERM)
	s.End(-1) // by the signal
}

func TestAShellOfItsOwn(t *testing.T) {
	stopped := func(s *session, want bool) {
		s.t.Helper()
		p := s.process()
		s.node.mu.Lock()
		defer s.node.mu.Unlock()
		if got := s.node.sandboxes[p.exe.Sandbox].State == microvm.SandboxStateStopped; got != want {
			s.t.Errorf("the sandbox has stopped: %v", got)
		}
	}
	node := newNode(t)
	s := onPTY(t, node, "shell", "python")
	s.Expect("size 50x132")
	s.Press("q")
	s.End(3)
	stopped(s, true)

	s = onPTY(t, node, "shell", "python")
	s.Expect("size 50x132")
	s.Press("~.")
	s.End(0)
	stopped(s, true)

	s = onPTY(t, node, "shell", "python", "--keep")
	s.Expect("size 50x132")
	s.Press("~.")
	s.Expect(`detached; exe_\w+ goes on`)
	s.Expect("kept sandbox ")
	s.End(0)
	stopped(s, false)

	s = onPTY(t, node, "run", "python", "-it", "--", "keys")
	s.Expect("size 50x132")
	_ = s.Cmd.Process.Signal(syscall.SIGTERM)
	s.Expect("interrupted by SIGTERM")
	s.End(143)
	stopped(s, true)
}

// attachHere is an attachment of this process on a terminal of its own.
func attachHere(t *testing.T, client *microvm.Client) (*attachment, *sharedBuffer) {
	t.Helper()
	_, program := console.Open(t)
	var shown sharedBuffer
	local, err := openTerminal(program, &shown, &shown)
	if err != nil {
		t.Fatal(err)
	}
	a := &attachment{
		client: client, exe: &microvm.Execution{ID: "exe_1", Sandbox: "sb_1"}, local: local, keys: make(chan []byte, 1),
		pause: func(err error, n int) (time.Duration, bool) {
			_, again := reattachPause(err, n)
			return 0, again
		},
	}
	return a, &shown
}

func TestAttachingAgainHasAnEnd(t *testing.T) {
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		tries  int64
		want   string
	}{
		"gone":         {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 1 + reattachTries, "EOF"},
		"a proxy":      {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) }, 1 + reattachTries, "HTTP 502"},
		"stopping":     {refusing(503, microvm.ErrorCodeShuttingDown), 1 + reattachTries, "shutting_down"},
		"not there":    {refusing(404, microvm.ErrorCodeExecutionNotFound), 1, "execution_not_found"},
		"no terminal":  {refusing(409, microvm.ErrorCodeExecutionNotTTY), 1, "execution_not_tty"},
		"guest silent": {refusing(502, microvm.ErrorCodeGuestUnreachable), 1, "guest_unreachable"},
		"nonsense": {func(w http.ResponseWriter, r *http.Request) {
			socket, _ := websocket.Accept(w, r, nil)
			defer socket.CloseNow()
			_ = socket.Write(r.Context(), websocket.MessageText, []byte("{"))
			_, _, _ = socket.Read(r.Context())
		}, 1, "not what the API promises"},
	} {
		t.Run(name, func(t *testing.T) {
			var tries atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				tries.Add(1)
				if got := r.Header.Get("Authorization"); got != "Bearer mvk_1" || r.URL.Path != "/v1/sandboxes/sb_1/executions/exe_1/terminal" {
					t.Errorf("%s with %q", r.URL, got)
				}
				test.answer(w, r)
			}))
			defer server.Close()
			a, _ := attachHere(t, microvm.New(microvm.WithURL(server.URL), microvm.WithAPIKey("mvk_1")))
			_, err := a.run(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) || tries.Load() != test.tries {
				t.Fatalf("%v after %d tries", err, tries.Load())
			}
		})
	}
	refused := &microvm.Error{Status: 503, RetryAfter: 7 * time.Second}
	if pause, again := reattachPause(refused, 0); pause != 7*time.Second || !again {
		t.Errorf("pause %s, %v", pause, again)
	}
}

func refusing(status int, code microvm.ErrorCode) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, status, microvm.ErrorTypeAPIError, code, "refused for a test", "")
	}
}

// Wherever a node goes on: nothing is shown twice, and what is missing is said.
func TestWhatATerminalShows(t *testing.T) {
	a, shown := attachHere(t, nil)
	a.at = -1
	text := func(message string) {
		t.Helper()
		if exit, err := a.show(websocket.MessageText, []byte(message)); exit != nil || err != nil {
			t.Fatal(exit, err)
		}
	}
	bin := func(data string) { _, _ = a.show(websocket.MessageBinary, []byte(data)) }
	text(`{"type":"position","offset":1000}`) // the last screen: what is before it is not missing
	bin("hello")
	text(`{"type":"news"}`)
	text(`{"type":"position","offset":1003}`) // attached again, too early
	bin("lo")
	bin(" world")
	text(`{"type":"truncated","from":1011,"to":1020}`)
	text(`{"type":"position","offset":1020}`)
	bin("!")
	text(`{"type":"position","offset":1022}`) // a gap that was not declared
	bin("?")
	want := "hello world\r\n[9 bytes of output are missing here]\r\n!\r\n[1 byte of output are missing here]\r\n?"
	if shown.String() != want || a.at != 1023 {
		t.Fatalf("at %d: %q", a.at, shown.String())
	}
	exit, err := a.show(websocket.MessageText, []byte(`{"type":"exit","exit_code":3,"status":"exited","reason":null,"signal":null,"timed_out":false,"oom_killed":true}`))
	if err != nil || *exit.ExitCode != 3 || !exit.OOMKilled || exit.Status != microvm.ExecutionStatusExited {
		t.Fatal(exit, err)
	}
}

type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A sandbox whose terminal is used does not end by a TTL that nobody chose.
func TestATerminalKeepsItsSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		client := microvm.New(microvm.WithURL("http://node"), microvm.WithMaxRetries(0), microvm.WithHTTPClient(&http.Client{Transport: transportFunc(func(r *http.Request) (*http.Response, error) {
			body, _ := io.ReadAll(r.Body)
			if r.URL.Path != "/v1/sandboxes/sb_1/extend" || string(body) != `{"ttl_seconds":900}` {
				t.Errorf("%s with %s", r.URL, body)
			}
			n := asked.Add(1)
			w := httptest.NewRecorder()
			switch {
			case n == 2:
				return nil, errors.New("lost") // once is no harm
			case n <= 3:
				send(w, 200, microvm.Sandbox{Object: microvm.SandboxObjectSandbox, Expires: time.Now().Add(15 * time.Minute)})
			default:
				refuse(w, 400, microvm.ErrorTypeInvalidRequestError, microvm.ErrorCodeParameterInvalid, "beyond the maximum", "ttl_seconds")
			}
			return w.Result(), nil
		})}))
		var shown sharedBuffer
		r := &runner{program: &program{client: client, sandbox: "sb_1", local: &terminal{err: &shown}}}
		r.result.Sandbox = &microvm.Sandbox{Expires: time.Now().Add(15 * time.Minute)}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stop := r.keepAlive(ctx)
		time.Sleep(16 * time.Minute)
		synctest.Wait()
		if asked.Load() != 3 || shown.String() != "" {
			t.Fatalf("%d extensions in 16 minutes; %q", asked.Load(), shown.String())
		}
		time.Sleep(time.Hour)
		stop()
		if asked.Load() != 4 || strings.Count(shown.String(), "the node lets no sandbox live longer: this one ends at ") != 1 {
			t.Fatalf("%d, %q", asked.Load(), shown.String())
		}
	})
}

// And so does a whole run, unless a TTL is named.
func TestAShellKeepsItsSandbox(t *testing.T) {
	defer func(d time.Duration) { extendEvery = d }(extendEvery)
	extendEvery = time.Millisecond
	for _, flags := range [][]string{nil, {"--ttl", "20m"}} {
		node := newFakeNode()
		extended := node.event("POST extend")
		typist, program := console.Open(t)
		go func() {
			<-node.event("terminal open")
			if flags == nil {
				<-extended
			}
			_, _ = typist.WriteString("q")
		}()
		root, g := newRootCommand()
		root.SetArgs(append([]string{"--url", node.server.URL, "--api-key", fakeKey, "shell", "python"}, flags...))
		var out, said sharedBuffer
		root.SetIn(program)
		root.SetOut(&out)
		root.SetErr(&said)
		cmd, err := root.ExecuteContextC(t.Context())
		if code := finish(cmd, err, g.began, &said); code != 3 {
			t.Fatalf("code %d, %q, %q", code, out.String(), said.String())
		}
		if got := len(node.extended) > 0; got != (flags == nil) {
			t.Errorf("with %q it was extended: %v", flags, got)
		}
		node.close()
	}
}

// What is waited for is told until the first output, and never amid it.
func TestProgressEndsWithTheFirstOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var shown bytes.Buffer
		shownUntil := (&progress{out: &shown, show: true, terminal: true}).wait("the end of make")
		time.Sleep(quietTime + time.Second/2)
		synctest.Wait()
		out := &printer{w: &shown, first: shownUntil}
		_, _ = out.Write([]byte("first"))
		time.Sleep(time.Hour)
		_, _ = out.Write([]byte(" second"))
		if got := shown.String(); got != "\rwaiting for the end of make (2 s)\x1b[K\r\x1b[Kfirst second" {
			t.Fatalf("%q", got)
		}
	})
}

func TestATerminalIsWanted(t *testing.T) {
	if _, err := openTerminal(strings.NewReader(""), io.Discard, io.Discard); err == nil {
		t.Error("a string is a terminal")
	}
	_, program := console.Open(t)
	if !term.IsTerminal(int(program.Fd())) {
		t.Fatal("the test's terminal is none")
	}
}
