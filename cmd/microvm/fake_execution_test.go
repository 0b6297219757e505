package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// process is an execution of the fake: a Go function that prints, reads and ends.
// The node's lock guards it.
type process struct {
	f       *fakeNode
	exe     *microvm.Execution
	env     microvm.Env
	pieces  []piece
	at      microvm.Position
	input   []byte
	read    int  // of input, by the program
	closed  bool // no more input comes
	refuses bool // the program reads no more
	sizes   []microvm.TerminalSize
	cancels []microvm.ExecutionCancel
	cut     int           // connections of its stream or terminal that break
	drops   int           // terminals that were closed by their client
	changed chan struct{} // closed at the next change
}

// piece is some output, or a gap when data is empty.
type piece struct {
	stream microvm.OutputStream
	from   int64
	to     int64
	data   string
}

// change tells who waits; it expects the lock.
func (p *process) changeLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *process) endLocked(status microvm.ExecutionStatus, set func(*microvm.Execution)) {
	if p.exe.Ended() {
		return
	}
	p.exe.Status = status
	p.exe.Finished, p.exe.DurationMS = new(time.Now().UTC()), new(int64(1))
	if set != nil {
		set(p.exe)
	}
	p.changeLocked()
}

func (p *process) ended() bool {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	return p.exe.Ended()
}

func (p *process) end(status microvm.ExecutionStatus, set func(*microvm.Execution)) {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	p.endLocked(status, set)
}

func (p *process) because(status microvm.ExecutionStatus, reason microvm.ExecutionReason) {
	p.end(status, func(e *microvm.Execution) { e.Reason = &reason })
}

func (p *process) exit(code int) {
	p.end(microvm.ExecutionStatusExited, func(e *microvm.Execution) { e.ExitCode = &code })
}

// print writes to a stream; lose lets the next bytes of it fall out.
func (p *process) print(stream microvm.OutputStream, text string) { p.add(stream, len(text), text) }

func (p *process) out(format string, args ...any) {
	p.print(microvm.OutputStreamStdout, fmt.Sprintf(format, args...))
}
func (p *process) lose(stream microvm.OutputStream, n int) { p.add(stream, n, "") }

func (p *process) add(stream microvm.OutputStream, n int, text string) {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	at, kept := &p.at.Stdout, &p.exe.Stdout
	if stream == microvm.OutputStreamStderr {
		at, kept = &p.at.Stderr, &p.exe.Stderr
	}
	p.pieces = append(p.pieces, piece{stream, *at, *at + int64(n), text})
	*at += int64(n)
	*kept = strings.ToValidUTF8(*kept+text, string(utf8.RuneError))
	p.exe.StdoutBytes, p.exe.StderrBytes = p.at.Stdout, p.at.Stderr
	p.changeLocked()
}

// await waits for something under the lock, or until the execution has ended.
func (p *process) await(what func() bool) bool {
	for {
		p.f.mu.Lock()
		ok, ended, changed := what(), p.exe.Ended(), p.changed
		p.f.mu.Unlock()
		if ok || ended {
			return ok
		}
		<-changed
	}
}

// next waits for input, and returns "" at its end.
func (p *process) next() string {
	var text string
	p.await(func() bool {
		text = string(p.input[p.read:])
		p.read = len(p.input)
		if text != "" {
			p.changeLocked() // there is room for more
		}
		return text != "" || p.closed
	})
	return text
}

func (f *fakeNode) createExecution(w http.ResponseWriter, r *http.Request) {
	var spec microvm.ExecutionCreate
	if !take(w, r, &spec) {
		return
	}
	f.mu.Lock()
	sb := f.sandbox(w, r)
	if sb == nil {
		f.mu.Unlock()
		return
	}
	if sb.State == microvm.SandboxStateStopped {
		f.mu.Unlock()
		refuse(w, 409, microvm.ErrorTypeInvalidRequestError, microvm.ErrorCodeSandboxNotRunning, "the sandbox has stopped; create another", "")
		return
	}
	exe := &microvm.Execution{
		ID: f.id("exe"), Object: microvm.ExecutionObjectExecution, Sandbox: sb.ID, Cmd: spec.Cmd, Args: spec.Args, Cwd: spec.Cwd, User: spec.User,
		TimeoutSeconds: 300, Status: microvm.ExecutionStatusRunning, Created: time.Now().UTC(),
	}
	if exe.Args == nil {
		exe.Args = []string{}
	}
	if spec.TimeoutSeconds != nil {
		exe.TimeoutSeconds = *spec.TimeoutSeconds
	}
	p := &process{f: f, exe: exe, env: microvm.Env{}, changed: make(chan struct{})}
	maps.Copy(p.env, f.env[sb.ID])
	maps.Copy(p.env, spec.Env)
	if spec.TTY != nil && *spec.TTY {
		exe.TTY, exe.StdinOpen = true, true
		p.sizes = append(p.sizes, microvm.TerminalSize{Rows: 24, Cols: 80})
		if spec.Rows != nil {
			p.sizes[0] = microvm.TerminalSize{Rows: *spec.Rows, Cols: *spec.Cols}
		}
	}
	if spec.StdinOpen != nil {
		exe.StdinOpen = *spec.StdinOpen
	}
	p.closed = !exe.StdinOpen
	f.processes[exe.ID] = p
	run := programs[spec.Cmd]
	switch {
	case run == nil:
		p.endLocked(microvm.ExecutionStatusFailed, func(e *microvm.Execution) { e.Reason = new(microvm.ExecutionReasonCommandNotFound) })
	case spec.Cmd == "refuse":
		p.endLocked(microvm.ExecutionStatusFailed, func(e *microvm.Execution) { e.Reason = new(microvm.ExecutionReason(spec.Args[0])) })
	}
	f.mu.Unlock()
	switch {
	case p.ended():
	case spec.Cmd == "instant":
		run(p)
	default:
		go func() {
			f.happened("end of execution")
			run(p)
		}()
	}
	f.mu.Lock()
	reply := *exe
	f.mu.Unlock()
	w.Header().Set("Location", r.URL.Path+"/"+exe.ID)
	send(w, 201, reply)
}

// process finds the one of a request, or answers that there is none.
func (f *fakeNode) process(w http.ResponseWriter, r *http.Request) *process {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.processes[r.PathValue("execution")]
	if p == nil {
		missing(w, microvm.ErrorCodeExecutionNotFound, "this sandbox has no execution with this id; list its executions")
	}
	return p
}

func (p *process) reply(w http.ResponseWriter) {
	p.f.mu.Lock()
	exe := *p.exe
	p.f.mu.Unlock()
	send(w, 200, exe)
}

func (f *fakeNode) getExecution(w http.ResponseWriter, r *http.Request) {
	p := f.process(w, r)
	if p == nil {
		return
	}
	if r.URL.Query().Get("wait") != "" {
		p.await(func() bool { return r.Context().Err() != nil })
	}
	p.reply(w)
}

func (f *fakeNode) listExecutions(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := microvm.ExecutionList{Object: microvm.ListObjectList, URL: r.URL.Path, Data: []microvm.Execution{}}
	ids := slices.Sorted(maps.Keys(f.processes))
	slices.Reverse(ids)
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	for _, id := range ids {
		exe := *f.processes[id].exe
		switch after := r.URL.Query().Get("starting_after"); {
		case exe.Sandbox != r.PathValue("sandbox"), after != "" && id >= after:
		case len(list.Data) == limit:
			list.HasMore = true
		default:
			exe.Stdout, exe.Stderr = "", ""
			list.Data = append(list.Data, exe)
		}
	}
	send(w, 200, list)
}

func (f *fakeNode) cancelExecution(w http.ResponseWriter, r *http.Request) {
	var how microvm.ExecutionCancel
	if !take(w, r, &how) {
		return
	}
	p := f.process(w, r)
	if p == nil {
		return
	}
	name := "SIGKILL"
	if how.Signal != nil {
		name = string(*how.Signal)
	}
	f.mu.Lock()
	if p.exe.Ended() {
		f.mu.Unlock()
		refuse(w, 409, microvm.ErrorTypeInvalidRequestError, microvm.ErrorCodeExecutionNotRunning, "the execution has ended; get it to see how", "")
		return
	}
	p.cancels = append(p.cancels, how)
	p.exe.Reason = new(microvm.ExecutionReasonCanceled)
	if p.exe.Cmd != "undead" && (p.exe.Cmd != "trap" || name == "SIGKILL") {
		p.endLocked(microvm.ExecutionStatusCanceled, func(e *microvm.Execution) { e.Signal = &name })
	}
	p.changeLocked()
	f.mu.Unlock()
	f.happened("canceled by " + name)
	p.reply(w)
}

func (f *fakeNode) writeStdin(w http.ResponseWriter, r *http.Request) {
	var in microvm.ExecutionStdinWrite
	if !take(w, r, &in) {
		return
	}
	p := f.process(w, r)
	if p == nil {
		return
	}
	// A pipe of 64 KiB: what does not fit is not taken, and the caller waits.
	const pipe = 64 << 10
	p.await(func() bool { return p.refuses || p.read+pipe > len(p.input) })
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case p.exe.Ended():
		refuse(w, 409, microvm.ErrorTypeInvalidRequestError, microvm.ErrorCodeExecutionNotRunning, "the execution has ended", "")
		return
	case in.Offset > int64(len(p.input)):
		refuse(w, 400, microvm.ErrorTypeInvalidRequestError, microvm.ErrorCodeParameterInvalid, "beyond what was taken", "offset")
		return
	}
	fresh := in.Data[min(int64(len(in.Data)), int64(len(p.input))-in.Offset):]
	room := min(len(fresh), p.read+pipe-len(p.input))
	if !p.closed && !p.refuses {
		p.input = append(p.input, fresh[:room]...)
		p.closed = room == len(fresh) && in.Close != nil && *in.Close
	}
	p.changeLocked()
	send(w, 200, microvm.ExecutionStdin{Object: microvm.ExecutionStdinObjectExecutionStdin, Offset: int64(len(p.input)), Closed: p.closed || p.refuses})
}

// each calls do for all output from a position on, until the end, which it
// returns, or until do or the context says no.
func (p *process) each(ctx context.Context, at microvm.Position, do func(piece, microvm.Position) bool) (*microvm.Execution, microvm.Position) {
	stop := context.AfterFunc(ctx, func() { p.f.mu.Lock(); p.changeLocked(); p.f.mu.Unlock() })
	defer stop()
	for {
		var next *piece
		more := p.await(func() bool {
			for _, found := range p.pieces {
				of := &at.Stdout
				if found.stream == microvm.OutputStreamStderr {
					of = &at.Stderr
				}
				if found.to > *of {
					if found.data != "" {
						found.data = found.data[max(*of-found.from, 0):]
					}
					found.from = max(*of, found.from)
					*of = found.to
					next = &found
					return true
				}
			}
			return ctx.Err() != nil
		})
		switch {
		case ctx.Err() != nil:
			return nil, at
		case !more:
			p.f.mu.Lock()
			exe := *p.exe
			p.f.mu.Unlock()
			return &exe, at
		case !do(*next, at):
			return nil, at
		}
	}
}

// breaks reports whether a connection is to be cut, once for each that is.
func (p *process) breaks() bool {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	if p.cut == 0 {
		return false
	}
	p.cut--
	return true
}

func exitOf(exe *microvm.Execution) microvm.StreamExit {
	return microvm.StreamExit{
		ExitCode: exe.ExitCode, Signal: exe.Signal, OOMKilled: exe.OOMKilled, Status: exe.Status, Reason: exe.Reason,
		TimedOut: exe.Status == microvm.ExecutionStatusTimedOut,
	}
}

func (f *fakeNode) streamExecution(w http.ResponseWriter, r *http.Request) {
	p := f.process(w, r)
	if p == nil {
		return
	}
	var from microvm.Position
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		from, _ = microvm.ParsePosition(id)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w).Flush
	event := func(name string, at microvm.Position, data any) {
		text, _ := json.Marshal(data)
		_, _ = fmt.Fprintf(w, "id: %s\nevent: %s\ndata: %s\n\n", at, name, text)
		_ = flush()
	}
	_ = flush()
	if from == (microvm.Position{}) {
		event("started", from, microvm.StreamStarted{PID: 7})
	}
	exe, at := p.each(r.Context(), from, func(piece piece, at microvm.Position) bool {
		if piece.data == "" {
			event("truncated", at, microvm.StreamTruncated{Stream: piece.stream, From: piece.from, To: piece.to})
		} else {
			event(string(piece.stream), at, microvm.StreamOutput{Data: []byte(piece.data), Offset: piece.from})
			f.happened("told " + string(piece.stream))
		}
		return !p.breaks()
	})
	if exe == nil {
		panic(http.ErrAbortHandler)
	}
	event("exit", at, exitOf(exe))
}

func (f *fakeNode) openTerminal(w http.ResponseWriter, r *http.Request) {
	p := f.process(w, r)
	if p == nil {
		return
	}
	if !p.exe.TTY {
		refuse(w, 409, microvm.ErrorTypeInvalidRequestError, microvm.ErrorCodeExecutionNotTTY, "it was started without a terminal", "")
		return
	}
	socket, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer socket.CloseNow()
	f.mu.Lock()
	at := microvm.Position{Stdout: max(p.at.Stdout-64<<10, 0)}
	f.mu.Unlock()
	if after := r.URL.Query().Get("after"); after != "" {
		at.Stdout, _ = strconv.ParseInt(after, 10, 64)
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	tell := func(message any) {
		text, _ := json.Marshal(message)
		_ = socket.Write(ctx, websocket.MessageText, text)
	}
	tell(microvm.TerminalPosition{Type: microvm.TerminalPositionTypePosition, Offset: at.Stdout})
	f.happened("terminal open")
	go func() {
		defer cancel()
		f.takeKeys(ctx, p, socket)
	}()
	exe, _ := p.each(ctx, at, func(piece piece, at microvm.Position) bool {
		if piece.data == "" {
			tell(microvm.TerminalTruncated{Type: microvm.TerminalTruncatedTypeTruncated, From: piece.from, To: piece.to})
			tell(microvm.TerminalPosition{Type: microvm.TerminalPositionTypePosition, Offset: piece.to})
		} else {
			_ = socket.Write(ctx, websocket.MessageBinary, []byte(piece.data))
		}
		return piece.data != cutting || !p.breaks()
	})
	if exe != nil {
		e := exitOf(exe)
		tell(microvm.TerminalExit{
			Type: microvm.TerminalExitTypeExit, ExitCode: e.ExitCode, Signal: e.Signal, TimedOut: e.TimedOut, OOMKilled: e.OOMKilled, Status: e.Status, Reason: e.Reason,
		})
		_ = socket.Close(websocket.StatusNormalClosure, "the execution has ended")
	}
}

// takeKeys takes a client's messages until it leaves.
func (f *fakeNode) takeKeys(ctx context.Context, p *process, socket *websocket.Conn) {
	for {
		kind, message, err := socket.Read(ctx)
		f.mu.Lock()
		var size microvm.TerminalResize
		switch {
		case websocket.CloseStatus(err) == websocket.StatusNormalClosure:
			p.drops++
		case err != nil:
		case kind == websocket.MessageBinary:
			p.input = append(p.input, message...)
		case json.Unmarshal(message, &size) == nil && size.Type == microvm.TerminalResizeTypeResize:
			p.sizes = append(p.sizes, microvm.TerminalSize{Rows: size.Rows, Cols: size.Cols})
		}
		p.changeLocked()
		f.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// programs are what the fake can run.
var programs = map[string]func(*process){
	"say":     func(p *process) { p.out("%s\n", strings.Join(p.exe.Args, " ")); p.exit(0) },
	"python3": func(p *process) { p.out("python3 %s\n", strings.Join(p.exe.Args, " ")); p.exit(0) },
	"exit": func(p *process) {
		code, _ := strconv.Atoi(p.exe.Args[0])
		p.out("out")
		p.print(microvm.OutputStreamStderr, "err\n")
		p.exit(code)
	},
	// Has ended before its start is answered.
	"instant": func(p *process) { p.out("at once\r\n"); p.exit(8) },
	"files": func(p *process) {
		for _, arg := range p.exe.Args {
			p.f.mu.Lock()
			text := "none\n"
			if file := p.f.at(p.exe.Sandbox, absolute(arg)); file != nil {
				text = fmt.Sprintf("%s %s\n%s", absolute(arg), file.mode, file.content)
			}
			p.f.mu.Unlock()
			p.out("%s", text)
		}
		p.exit(0)
	},
	"where": func(p *process) {
		p.out("%s %s %d\n", orDash(p.exe.Cwd), orDash(p.exe.User), p.exe.TimeoutSeconds)
		p.exit(0)
	},
	"env": func(p *process) {
		for _, name := range slices.Sorted(maps.Keys(p.env)) {
			p.out("%s=%s\n", name, p.env[name])
		}
		p.exit(0)
	},
	"cat": cat,
	// How much it reads.
	"count": func(p *process) {
		n := 0
		for text := p.next(); text != ""; text = p.next() {
			n += len(text)
		}
		p.out("%d\n", n)
		p.exit(0)
	},
	// Reads once and no more, and has an end of its own.
	"head": func(p *process) {
		p.next()
		p.f.mu.Lock()
		p.refuses = true
		p.changeLocked()
		p.f.mu.Unlock()
		p.out("enough\n")
		p.exit(0)
	},
	"escape": func(p *process) { p.out("\x1b[31mred\x1b[0m\r\x00\n"); p.exit(0) },
	"binary": func(p *process) { p.out("\xff\xfe\x00\n"); p.exit(0) },
	"flood": func(p *process) {
		p.lose(microvm.OutputStreamStdout, 5<<20)
		p.out("tail\n")
		p.exit(0)
	},
	// Prints in pieces, with a stream that breaks after each.
	"lost": func(p *process) {
		p.f.mu.Lock()
		p.cut = 3
		p.f.mu.Unlock()
		p.out("one\n")
		p.print(microvm.OutputStreamStderr, "two\n")
		p.out("three\n")
		p.out("four\n")
		p.exit(5)
	},
	"signal": func(p *process) {
		p.end(microvm.ExecutionStatusExited, func(e *microvm.Execution) { e.Signal = &e.Args[0] })
	},
	"oom": func(p *process) {
		p.end(microvm.ExecutionStatusExited, func(e *microvm.Execution) { e.ExitCode, e.OOMKilled = new(137), true })
	},
	"slow": func(p *process) {
		p.out("begun\n")
		p.end(microvm.ExecutionStatusTimedOut, func(e *microvm.Execution) {
			e.Reason, e.Signal = new(microvm.ExecutionReasonTimeout), new("SIGKILL")
		})
	},
	"vanish": func(p *process) {
		p.because(microvm.ExecutionStatusVanished, microvm.ExecutionReason(p.exe.Args[0]))
	},
	"refuse": func(*process) {}, // see createExecution
	// Runs until it is cancelled; trap answers to SIGKILL only, undead to nothing.
	"sleep": func(p *process) {
		p.out("asleep\n")
		p.f.happened("asleep")
		p.await(func() bool { return false })
	},
	"undead": func(p *process) {
		p.out("undead\n")
		p.f.happened("undead")
		p.await(func() bool { return false })
	},
	"trap": func(p *process) {
		p.out("trapped\n")
		p.f.happened("trapped")
		p.await(func() bool { return false })
	},
	// For a terminal: tells each key and each size, until q.
	"keys": keys,
	"sh":   keys, // of microvm shell
}

// cat prints what it reads.
func cat(p *process) {
	for text := p.next(); text != ""; text = p.next() {
		p.out("%s", text)
	}
	p.exit(0)
}

// cutting is the output with which the connection of a terminal breaks.
const cutting = "cutting\r\n"

func keys(p *process) {
	if !p.exe.TTY {
		cat(p)
		return
	}
	p.out("TERM=%s\r\n", p.env["TERM"])
	told := 0
	for {
		var sizes []microvm.TerminalSize
		var typed string
		if !p.await(func() bool {
			typed = string(p.input[p.read:])
			p.read = len(p.input)
			sizes = p.sizes[told:]
			told = len(p.sizes)
			return typed != "" || len(sizes) > 0
		}) {
			return
		}
		for _, size := range sizes {
			p.out("size %dx%d\r\n", size.Rows, size.Cols)
		}
		switch typed {
		case "":
		case "q":
			p.out("bye\r\n")
			p.exit(3)
			return
		case "X":
			p.f.mu.Lock()
			p.cut++
			p.f.mu.Unlock()
			p.out(cutting)
		default:
			p.out("key %q\r\n", typed)
		}
	}
}
