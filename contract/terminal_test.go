package contract

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// screen is a client at a terminal, made by hand: by no SDK.
type screen struct {
	*websocket.Conn
	t    *testing.T
	from int64  // where what it shows begins
	seen string // all that was shown
	exit *microvm.TerminalExit
}

func (d *daemon) attach(t *testing.T, path string, header ...string) (*screen, *http.Response, error) {
	t.Helper()
	options := &websocket.DialOptions{HTTPHeader: http.Header{}}
	if !strings.Contains(path, "ticket=") {
		options.HTTPHeader.Set("Authorization", "Bearer "+d.key)
	}
	for i := 0; i < len(header); i += 2 {
		options.HTTPHeader.Set(header[i], header[i+1])
	}
	conn, reply, err := websocket.Dial(t.Context(), "ws://"+d.addr+path, options)
	if err != nil {
		return nil, reply, err
	}
	conn.SetReadLimit(1 << 20)
	t.Cleanup(func() { _ = conn.CloseNow() })
	s := &screen{Conn: conn, t: t, from: -1}
	kind, content, err := conn.Read(t.Context())
	var first microvm.TerminalPosition
	if err != nil || kind != websocket.MessageText || json.Unmarshal(content, &first) != nil || first.Type != "position" {
		t.Fatalf("the first message is %q (%v)", content, err)
	}
	s.from = first.Offset
	return s, reply, nil
}

func (d *daemon) attached(t *testing.T, path string) *screen {
	t.Helper()
	s, _, err := d.attach(t, path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// until reads on until the screen shows that, and returns the end of the socket
// if it comes before.
func (s *screen) until(text string) error {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	for text == "" || !strings.Contains(s.seen, text) {
		kind, content, err := s.Read(ctx)
		switch {
		case err != nil && text != "":
			s.t.Fatalf("the screen shows %q and not %q: %v", s.seen, text, err)
		case err != nil:
			return err
		case kind == websocket.MessageBinary:
			s.seen += string(content)
		default:
			var exit microvm.TerminalExit
			if err := json.Unmarshal(content, &exit); err != nil || exit.Type != "exit" {
				s.t.Fatalf("%s", content)
			}
			s.exit = &exit
		}
	}
	return nil
}

func (s *screen) types(text string) {
	s.t.Helper()
	if err := s.Write(s.t.Context(), websocket.MessageBinary, []byte(text)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) resize(text string) {
	s.t.Helper()
	if err := s.Write(s.t.Context(), websocket.MessageText, []byte(text)); err != nil {
		s.t.Fatal(err)
	}
}

// ends wants the exit message and then the close that goes with it.
func (s *screen) ends(code int) {
	s.t.Helper()
	err := s.until("")
	var how websocket.CloseError
	if !errors.As(err, &how) || how.Code != websocket.StatusNormalClosure {
		s.t.Errorf("closed with %v", err)
	}
	if s.exit == nil || s.exit.ExitCode == nil || *s.exit.ExitCode != code || s.exit.Status != "exited" {
		s.t.Errorf("the end is %+v", s.exit)
	}
}

const shell = `{"cmd":"sh","tty":true,"rows":30,"cols":100,"env":{"PS1":"ready> "}}`

// TestTerminal: a shell that is typed into, whose window changes, that is left
// and found again, and that says with which code it ended.
func TestTerminal(t *testing.T) {
	d := start(t)
	sb := create(t, d.remote(), microvm.SandboxCreate{Image: "python"})
	path := d.begin(t, sb.ID, shell)
	s := d.attached(t, path+"/terminal")
	_ = s.until("ready> ")
	s.types("stty size; test -t 0 && echo i''s a terminal\r")
	_ = s.until("30 100\r\nis a terminal\r\nready> ")
	s.resize(`{"type":"resize","rows":50,"cols":132}`)
	s.types("stty size; echo re''sized\r")
	_ = s.until("50 132\r\nresized\r\nready> ")
	got := request(t, d, d.key, "POST", path+"/resize", `{"rows":24,"cols":80}`)
	if exe := execution(t, got); exe.Status != "running" || !exe.TTY || !exe.StdinOpen || exe.Stdout != "" {
		t.Errorf("%+v", exe)
	}
	s.types("stty size; echo by a re''quest\r")
	_ = s.until("24 80\r\nby a request\r\nready> ")
	s.types("sleep 600; echo not re''ached\r")
	_ = s.until("ached\r\n")
	s.types("\x03") // Ctrl-C ends the sleep and not the shell
	_ = s.until("^C\r\nready> ")
	s.types("echo st''ill here\r")
	_ = s.until("still here\r\nready> ")

	// Left, while it works, and found again with the screen as it is.
	s.types("(sleep 0.3; echo wor''ked) & \r")
	_ = s.until("& \r\n")
	if err := s.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
	eventually(t, "it works on", func() bool {
		return strings.Contains(execution(t, request(t, d, d.key, "GET", path, "")).Stdout, "worked\r\n")
	})
	again := d.attached(t, path+"/terminal")
	_ = again.until("worked\r\n")
	if again.from != 0 || !strings.Contains(again.seen, "50 132\r\nresized") {
		t.Errorf("from %d it shows %q", again.from, again.seen)
	}
	total := int(again.from) + len(again.seen)
	for query, from := range map[string]int{"?tail=7": total - 7, "?after=9": 9} {
		part := d.attached(t, path+"/terminal"+query)
		if int(part.from) < from || int(part.from) > from+200 { // what the shell printed meanwhile
			t.Errorf("%s begins at %d, want %d", query, part.from, from)
		}
		_ = part.CloseNow()
	}
	again.types("exit 7\r")
	again.ends(7)

	// After the end there is something to see, and nothing to type into.
	after := d.attached(t, path+"/terminal")
	after.ends(7)
	if !strings.Contains(after.seen, "still here") {
		t.Errorf("%q", after.seen)
	}
	refused := request(t, d, d.key, "POST", path+"/resize", `{"rows":24,"cols":80}`)
	checkRefusal(t, refused, 409, "invalid_request_error", "execution_not_running", "")
}

// TestTerminalsAreShared: what one types all see; the end of the input is typed.
func TestTerminalsAreShared(t *testing.T) {
	d := start(t)
	sb := create(t, d.remote(), microvm.SandboxCreate{Image: "python"})
	path := d.begin(t, sb.ID, `{"cmd":"cat","tty":true,"stdin":"first\n"}`)
	one, two := d.attached(t, path+"/terminal"), d.attached(t, path+"/terminal")
	_ = one.until("first\r\nfirst\r\n") // the terminal's echo, and cat's
	one.types("one\r")
	_ = two.until("one\r\none\r\n")
	two.types("two\r")
	_ = one.until("two\r\ntwo\r\n")
	if taken := d.put(t, path, 0, "", false); taken.Offset != 14 {
		t.Errorf("%+v", taken)
	}
	two.types("\x04") // Ctrl-D
	one.ends(0)
	two.ends(0)
}

// TestTerminalRefuses: with an envelope, as every route.
func TestTerminalRefuses(t *testing.T) {
	d := start(t)
	sb := create(t, d.remote(), microvm.SandboxCreate{Image: "python"})
	plain := d.begin(t, sb.ID, `{"cmd":"sleep","args":["600"]}`)
	_, got, err := d.attach(t, plain+"/terminal")
	if err == nil || got.StatusCode != http.StatusConflict {
		t.Errorf("a program without a terminal: %v", err)
	}
	refused := request(t, d, d.key, "POST", plain+"/resize", `{"rows":24,"cols":80}`)
	checkRefusal(t, refused, 409, "invalid_request_error", "execution_not_tty", "")
	path := d.begin(t, sb.ID, shell)
	refused = request(t, d, d.key, "GET", path+"/terminal", "")
	checkRefusal(t, refused, 400, "invalid_request_error", "parameter_invalid", "")
	if _, got, err := d.attach(t, path+"/terminal", "Origin", "https://evil.example"); err == nil || got.StatusCode != http.StatusForbidden {
		t.Errorf("a page of another origin: %v", err)
	}
	if _, got, err := d.attach(t, path+"/terminal", "Authorization", "Bearer mvk_x"); err == nil || got.StatusCode != http.StatusUnauthorized {
		t.Errorf("a wrong key: %v", err)
	}
	s, _, err := d.attach(t, path+"/terminal", "Origin", d.url())
	if err != nil {
		t.Fatal(err)
	}
	s.resize(`{"type":"stdin"}`)
	var how websocket.CloseError
	if err := s.until(""); !errors.As(err, &how) || how.Code != websocket.StatusPolicyViolation || !strings.Contains(how.Reason, "resize") {
		t.Errorf("closed with %v", err)
	}
	if exe := execution(t, request(t, d, d.key, "GET", path, "")); exe.Status != "running" {
		t.Errorf("a client that is sent away ends the program: %+v", exe)
	}
}

// TestTerminalOfADaemonThatStops is closed with a word, before the daemon's end.
func TestTerminalOfADaemonThatStops(t *testing.T) {
	d := start(t, "--drain=false")
	sb := create(t, d.remote(), microvm.SandboxCreate{Image: "python"})
	s := d.attached(t, d.begin(t, sb.ID, shell)+"/terminal")
	_ = s.until("ready> ")
	ended := make(chan error, 1)
	go func() { ended <- s.until("") }()
	if code := d.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	var how websocket.CloseError
	if err := <-ended; !errors.As(err, &how) || how.Code != websocket.StatusGoingAway || !strings.Contains(how.Reason, "attach again") {
		t.Errorf("closed with %v", err)
	}
	d.killPrograms(t)
}

// TestTickets: what a browser does, with neither header nor key.
func TestTickets(t *testing.T) {
	d := start(t)
	sb := create(t, d.remote(), microvm.SandboxCreate{Image: "python"})
	path := d.begin(t, sb.ID, shell)
	var all []string
	ticket := func(of string) string {
		t.Helper()
		got := request(t, d, d.key, "POST", "/v1/tickets", `{"method":"GET","path":"`+path+of+`"}`)
		var made microvm.Ticket
		if err := json.Unmarshal(got.body, &made); err != nil || got.StatusCode != http.StatusCreated || made.Path != path+of {
			t.Fatalf("%d %s", got.StatusCode, got.body)
		}
		if left := time.Until(made.Expires); left <= 0 || left > time.Minute {
			t.Errorf("it lives for %s", left)
		}
		all = append(all, made.Ticket)
		return made.Ticket
	}
	once := ticket("/terminal")
	s, _, err := d.attach(t, path+"/terminal?tail=0&ticket="+once, "Origin", d.url())
	if err != nil {
		t.Fatal(err)
	}
	s.types("echo typed wi''th a ticket\r")
	_ = s.until("typed with a ticket\r\n")
	if _, got, err := d.attach(t, path+"/terminal?ticket="+once); err == nil || got.StatusCode != http.StatusUnauthorized {
		t.Errorf("it opens twice: %v", err)
	}
	var shown told
	shown.add(d.stream(t, path+"/stream?after=0.0&ticket="+ticket("/stream")), func() bool { return strings.Contains(string(shown.stdout), "with a ticket") })
	for name, of := range map[string]string{"another route": "/terminal", "the same": "/stream"} {
		wrong := request(t, d, "", "GET", path+"/stream?ticket="+all[1], "")
		if of == "/terminal" {
			wrong = request(t, d, "", "GET", path+"/stream?ticket="+ticket(of), "")
		}
		if wrong.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %d", name, wrong.StatusCode)
		}
	}
	checkRefusal(t, request(t, d, "", "POST", "/v1/tickets", `{"method":"GET","path":"`+path+`/stream"}`), 401, "authentication_error", "token_missing", "")
	checkRefusal(t, request(t, d, "", "GET", path+"?ticket="+ticket("/stream"), ""), 401, "authentication_error", "token_missing", "")
	forgotten := ticket("/stream")
	d.kill(t)
	before := d.log.text()
	d.run(t)
	checkRefusal(t, request(t, d, "", "GET", path+"/stream?ticket="+forgotten, ""), 401, "authentication_error", "token_invalid", "")
	for _, ticket := range all {
		if strings.Contains(before+d.log.text(), ticket) {
			t.Error("the log has a ticket")
		}
	}
}
