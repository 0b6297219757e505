package microvm

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
)

func TestCopyOutput(t *testing.T) {
	r := serve(t, handlers{streaming})
	begun := execution("running")
	begun.Cmd = "make"
	var stdout, stderr bytes.Buffer
	var lost []int64
	ended, err := r.Executions.CopyOutput(t.Context(), &begun, Output{
		Stdout: &stdout, Stderr: &stderr,
		Lost: func(_ OutputStream, from, to int64) { lost = append(lost, from, to) },
	})
	if err != nil || ended.Err() != nil || *ended.ExitCode != 3 || ended.Cmd != "make" || ended.StdoutBytes != 4099 || ended.StderrBytes != 108 {
		t.Fatalf("%+v %v", ended, err)
	}
	if stdout.String() != historyOutput+strings.Repeat("line\n", 20)+"end" || stderr.String() != "wärning" {
		t.Fatalf("%q %q", stdout.String(), stderr.String())
	}
	if len(lost) != 4 || lost[1] != 100 || lost[2] != 117 || lost[3] != 4096 {
		t.Fatalf("lost %v", lost)
	}
	if begun.Ended() {
		t.Fatal("the caller's own execution was changed")
	}
}

// Output that is lost is never passed over in silence, and the rest is copied.
func TestCopyOutputWithAGap(t *testing.T) {
	r := serve(t, handlers{streaming})
	begun := execution("running")
	var stdout bytes.Buffer
	ended, err := r.Executions.CopyOutput(t.Context(), &begun, Output{Stdout: &stdout})
	var lost *LostOutputError
	if !errors.As(err, &lost) || *lost != (LostOutputError{Stdout: 4096 - 117, Stderr: 100}) || !ended.Ended() || !strings.HasSuffix(stdout.String(), "end") {
		t.Fatalf("%+v %v %q", ended, err, stdout.String())
	}
	if _, err = r.Executions.CopyOutput(t.Context(), &begun, Output{From: Position{4096, 100}}); err != nil {
		t.Fatal(err)
	}
}

type brokenWriter struct{ err error }

func (b brokenWriter) Write([]byte) (int, error) { return 0, b.err }

func TestCopyOutputToAWriterThatFails(t *testing.T) {
	full := errors.New("the disk is full")
	r := serve(t, handlers{streaming})
	begun := execution("running")
	exe, err := r.Executions.CopyOutput(t.Context(), &begun, Output{Stderr: brokenWriter{full}, Lost: func(OutputStream, int64, int64) {}})
	if !errors.Is(err, full) || exe.Ended() || !strings.HasPrefix(err.Error(), "copy output: write stderr: ") || len(r.seen()) != 1 {
		t.Fatalf("%+v %v %q", exe, err, r.seen())
	}
	r = serve(t, handlers{refusal(404, ErrorTypeInvalidRequestError, ErrorCodeExecutionNotFound)})
	if exe, err = r.Executions.CopyOutput(t.Context(), &begun, Output{}); !HasCode(err, ErrorCodeExecutionNotFound) || exe != &begun {
		t.Fatalf("%+v %v", exe, err)
	}
}

// program takes input as a guest does, so much at a time, and can be made to
// lose requests and replies.
type program struct {
	t       *testing.T
	input   []byte
	atATime int
	closeAt int // when it has read so much; 0 is never
	closed  bool
	lose    func(n int) bool // whether the reply to request n is lost
	n       int
}

func (p *program) take(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var in ExecutionStdinWrite
	if err := json.Unmarshal(body, &in); err != nil {
		p.t.Errorf("%v in %s", err, body)
	}
	p.n++
	if in.Offset > int64(len(p.input)) {
		p.t.Errorf("offset %d after %d bytes", in.Offset, len(p.input))
		refusal(400, ErrorTypeInvalidRequestError, ErrorCodeParameterInvalid)(w, r)
		return
	}
	fresh := in.Data[min(len(in.Data), len(p.input)-int(in.Offset)):]
	taken := min(len(fresh), p.atATime)
	p.input = append(p.input, fresh[:taken]...)
	if p.closeAt > 0 && len(p.input) >= p.closeAt {
		p.input, p.closed = p.input[:p.closeAt], true
	}
	if in.Close != nil && *in.Close && taken == len(fresh) {
		p.closed = true
	}
	if p.lose != nil && p.lose(p.n) {
		cut("")(w, r)
		return
	}
	reply(200, ExecutionStdin{Object: ExecutionStdinObjectExecutionStdin, Offset: int64(len(p.input)), Closed: p.closed})(w, r)
}

func TestCopyStdin(t *testing.T) {
	content := bytes.Repeat([]byte{0, 0xff, '\n', 'x', 0x03}, 200_000)
	for name, test := range map[string]struct {
		p      program
		in     io.Reader
		offset int64 // at the end
	}{
		"at once":                {program{atATime: 1 << 30}, bytes.NewReader(content), 1_000_000},
		"a full pipe":            {program{atATime: 64<<10 - 1}, bytes.NewReader(content), 1_000_000},
		"replies that are lost":  {program{atATime: 100_000, lose: func(n int) bool { return n%2 == 1 }}, bytes.NewReader(content), 1_000_000},
		"byte by byte":           {program{atATime: 1 << 30}, iotest.OneByteReader(bytes.NewReader(content[:99])), 99},
		"data with its end":      {program{atATime: 1 << 30}, iotest.DataErrReader(bytes.NewReader(content[:99])), 99},
		"nothing":                {program{atATime: 1}, strings.NewReader(""), 0},
		"a program that had it":  {program{atATime: 1 << 30, closeAt: 300_000}, bytes.NewReader(content), 300_000},
		"a program that is slow": {program{atATime: 1}, bytes.NewReader(content[:9]), 9},
	} {
		t.Run(name, func(t *testing.T) {
			p := &test.p
			p.t = t
			r := serve(t, handlers{p.take})
			taken, err := r.Executions.CopyStdin(t.Context(), sandboxID, executionID, 0, test.in)
			if err != nil || taken.Offset != test.offset || !taken.Closed || !p.closed {
				t.Fatalf("%+v %v", taken, err)
			}
			if !bytes.Equal(p.input, content[:test.offset]) {
				t.Fatalf("%d bytes came, and not as they were sent", len(p.input))
			}
			for _, request := range r.seen() {
				if request != "POST "+executionPath+"/stdin" {
					t.Fatal(request)
				}
			}
		})
	}
}

// Input goes on behind what the program was started with, which it may not have
// read yet.
func TestCopyStdinBehindTheText(t *testing.T) {
	at := func(offset int64, closed bool) http.HandlerFunc {
		return reply(200, ExecutionStdin{Object: ExecutionStdinObjectExecutionStdin, Offset: offset, Closed: closed})
	}
	r := serve(t, handlers{at(2, false), at(2, false), at(8, false), at(8, true)})
	taken, err := r.Executions.CopyStdin(t.Context(), sandboxID, executionID, 5, strings.NewReader("abc"))
	if err != nil || taken.Offset != 8 || !taken.Closed || len(r.pauses) != 2 {
		t.Fatalf("%+v %v, pauses %v", taken, err, r.pauses)
	}
}

func TestCopyStdinEnds(t *testing.T) {
	r := serve(t, handlers{refusal(409, ErrorTypeInvalidRequestError, ErrorCodeExecutionNotRunning)})
	if taken, err := r.Executions.CopyStdin(t.Context(), sandboxID, executionID, 0, strings.NewReader("x")); err != nil || !taken.Closed || taken.Offset != 0 {
		t.Fatalf("a program that has ended: %+v %v", taken, err)
	}
	own := errors.New("the disk is gone")
	if _, err := r.Executions.CopyStdin(t.Context(), sandboxID, executionID, 0, iotest.ErrReader(own)); !errors.Is(err, own) || len(r.seen()) != 1 {
		t.Fatalf("%v %q", err, r.seen())
	}
	r = serve(t, handlers{refusal(400, ErrorTypeInvalidRequestError, ErrorCodeParameterInvalid)})
	if _, err := r.Executions.CopyStdin(t.Context(), sandboxID, executionID, 0, strings.NewReader("x")); !HasCode(err, ErrorCodeParameterInvalid) {
		t.Fatal(err)
	}
	r = serve(t, handlers{reply(200, ExecutionStdin{Object: ExecutionStdinObjectExecutionStdin, Offset: 2})})
	if _, err := r.Executions.CopyStdin(t.Context(), sandboxID, executionID, 0, strings.NewReader("x")); err == nil || !strings.Contains(err.Error(), "unless somebody else sends too") {
		t.Fatal(err)
	}
	r = serve(t, handlers{cut("")})
	if _, err := r.Executions.Stdin(t.Context(), sandboxID, executionID, ExecutionStdinWrite{}); err == nil || len(r.seen()) != 1+2+waitRetries {
		t.Fatalf("%v after %d requests", err, len(r.seen()))
	}
}

func TestCancelAndResize(t *testing.T) {
	var body []byte
	r := serve(t, handlers{func(w http.ResponseWriter, req *http.Request) {
		body, _ = io.ReadAll(req.Body)
		reply(200, execution("canceled"))(w, req)
	}})
	exe, err := r.Executions.Cancel(t.Context(), sandboxID, executionID, ExecutionCancel{Signal: new(ExecutionCancelSignal("SIGTERM")), GraceSeconds: new(3)})
	if err != nil || exe.Status != ExecutionStatusCanceled || string(body) != `{"grace_seconds":3,"signal":"SIGTERM"}` {
		t.Fatalf("%+v %v, sent %s", exe, err, body)
	}
	if _, err = r.Executions.Cancel(t.Context(), sandboxID, executionID, ExecutionCancel{}); err != nil || string(body) != `{}` {
		t.Fatalf("%v, sent %s", err, body)
	}
	if _, err = r.Executions.Resize(t.Context(), sandboxID, executionID, TerminalSize{Rows: 50, Cols: 132}); err != nil || string(body) != `{"cols":132,"rows":50}` {
		t.Fatalf("%v, sent %s", err, body)
	}
	at := "POST " + executionPath
	if got := strings.Join(r.seen(), "\n"); got != at+"/cancel\n"+at+"/cancel\n"+at+"/resize" {
		t.Fatal(got)
	}
	if _, err = r.Executions.Cancel(t.Context(), sandboxID, "", ExecutionCancel{}); err == nil || !strings.HasPrefix(err.Error(), "cancel execution: ") {
		t.Fatal(err)
	}

	// A signal is not sent twice; a size may be.
	r = serve(t, handlers{cut(""), reply(200, execution("running"))})
	if _, err = r.Executions.Cancel(t.Context(), sandboxID, executionID, ExecutionCancel{}); err == nil || len(r.seen()) != 1 {
		t.Fatalf("%v %q", err, r.seen())
	}
	r = serve(t, handlers{cut(""), reply(200, execution("running"))})
	if _, err = r.Executions.Resize(t.Context(), sandboxID, executionID, TerminalSize{Rows: 1, Cols: 1}); err != nil {
		t.Fatal(err)
	}
}

func TestHowAnExecutionIsStarted(t *testing.T) {
	var body []byte
	r := serve(t, handlers{func(w http.ResponseWriter, req *http.Request) {
		body, _ = io.ReadAll(req.Body)
		reply(201, execution("running"))(w, req)
	}})
	_, err := r.Executions.Create(t.Context(), sandboxID, ExecutionCreate{
		Cmd: "bash", Env: Env{"TOKEN": "s3cret"}, Stdin: new("one\n"), StdinOpen: new(true), TTY: new(true), Rows: new(50), Cols: new(132),
	})
	want := `{"cmd":"bash","cols":132,"env":{"TOKEN":"s3cret"},"rows":50,"stdin":"one\n","stdin_open":true,"tty":true}`
	if err != nil || string(body) != want {
		t.Fatalf("%v, sent %s", err, body)
	}
}

func TestTickets(t *testing.T) {
	var body []byte
	r := serve(t, handlers{func(w http.ResponseWriter, req *http.Request) {
		body, _ = io.ReadAll(req.Body)
		reply(201, Ticket{Object: TicketObjectTicket, Ticket: "mvt_1", Path: executionPath + "/stream"})(w, req)
	}})
	ticket, err := r.Tickets.Create(t.Context(), executionPath+"/stream")
	if err != nil || ticket.Ticket != "mvt_1" || string(body) != `{"method":"GET","path":"`+executionPath+`/stream"}` || r.seen()[0] != "POST /v1/tickets" {
		t.Fatalf("%+v %v, sent %s to %q", ticket, err, body, r.seen())
	}
}

func TestConnection(t *testing.T) {
	base, header, h, err := New(WithURL("http://127.0.0.1:7080/v1/"), WithAPIKey("mvk_1")).Connection()
	if err != nil || base != "http://127.0.0.1:7080" || header.Get("Authorization") != "Bearer mvk_1" || h == nil {
		t.Fatalf("%s %v %v", base, header, err)
	}
	header.Set("Authorization", "other") // is the caller's own
	if _, _, _, err = New(WithURL("nonsense")).Connection(); err == nil {
		t.Fatal("no error")
	}
}
