package contract

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// event is one of a stream's, as the wire has it.
type event struct{ id, name, data string }

func (e event) decode(t *testing.T, to any) {
	t.Helper()
	if err := json.Unmarshal([]byte(e.data), to); err != nil {
		t.Fatalf("%s: %v: %s", e.name, err, e.data)
	}
}

// events is a stream that is read by hand: by no SDK.
type events struct {
	t     *testing.T
	body  io.ReadCloser
	lines *bufio.Reader
}

func pathOf(sandbox, execution string) string {
	return "/v1/sandboxes/" + sandbox + "/executions/" + execution
}

func (d *daemon) stream(t *testing.T, path string, header ...string) *events {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.url()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(path, "ticket=") {
		r.Header.Set("Authorization", "Bearer "+d.key)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = got.Body.Close() })
	if got.StatusCode != http.StatusOK || got.Header.Get("Content-Type") != "text/event-stream" {
		content, _ := io.ReadAll(got.Body)
		t.Fatalf("%d %s", got.StatusCode, content)
	}
	return &events{t, got.Body, bufio.NewReader(got.Body)}
}

// next is the next event; ok is false where the stream ends or breaks.
func (s *events) next() (e event, ok bool) {
	for {
		line, err := s.lines.ReadString('\n')
		if err != nil {
			return e, false
		}
		switch field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": "); field {
		case "id":
			e.id = value
		case "event":
			e.name = value
		case "data":
			e.data = value
		case "":
			if e.name != "" {
				return e, true
			}
		}
	}
}

// told is what one or several streams told of an execution.
type told struct {
	stdout, stderr []byte
	last           string // the id of the last event that has one
	end            event  // exit or error, if it came
	lost           int64  // bytes that were declared as truncated
}

// add reads on, until the stream ends or enough says so. What comes must go on
// where the last ended.
func (o *told) add(s *events, enough func() bool) {
	s.t.Helper()
	for {
		e, ok := s.next()
		if !ok {
			return
		}
		if e.id != "" {
			o.last = e.id
		}
		switch e.name {
		case "stdout", "stderr":
			var wire microvm.StreamOutput
			e.decode(s.t, &wire)
			to := &o.stdout
			if e.name == "stderr" {
				to = &o.stderr
			}
			if o.lost == 0 && wire.Offset != int64(len(*to)) {
				s.t.Fatalf("%s goes on at %d, after %d", e.name, wire.Offset, len(*to))
			}
			*to = append(*to, wire.Data...)
		case "truncated":
			var wire microvm.StreamTruncated
			e.decode(s.t, &wire)
			o.lost += wire.To - wire.From
		case "exit", "error":
			o.end = e
		}
		if enough != nil && enough() {
			return
		}
	}
}

func (o *told) exit(t *testing.T) (how microvm.StreamExit) {
	t.Helper()
	if o.end.name != "exit" {
		t.Fatalf("the stream ended with %+v", o.end)
	}
	o.end.decode(t, &how)
	return how
}

// begin starts a program, and returns the path of its execution.
func (d *daemon) begin(t *testing.T, sandbox, body string) string {
	t.Helper()
	got := request(t, d, d.key, "POST", "/v1/sandboxes/"+sandbox+"/executions", body)
	var exe microvm.Execution
	if err := json.Unmarshal(got.body, &exe); err != nil || got.StatusCode != http.StatusCreated || exe.Status != "running" {
		t.Fatalf("%d %s", got.StatusCode, got.body)
	}
	return pathOf(sandbox, exe.ID)
}

// execution decodes a reply that must be one.
func execution(t *testing.T, got reply) (exe microvm.Execution) {
	t.Helper()
	if err := json.Unmarshal(got.body, &exe); err != nil || got.StatusCode != http.StatusOK {
		t.Fatalf("%d %.500s (%v)", got.StatusCode, got.body, err)
	}
	return exe
}

func (d *daemon) waitFor(t *testing.T, path string) microvm.Execution {
	t.Helper()
	return execution(t, request(t, d, d.key, "GET", path+"?wait=60", ""))
}

// TestStreamHasTheExactBytes: also those that are no text, and a character that
// is written in two halves; again after the end, from everywhere.
func TestStreamHasTheExactBytes(t *testing.T) {
	d := start(t)
	sb := create(t, d.remote(), microvm.SandboxCreate{Image: "python"})
	path := d.begin(t, sb.ID, `{"cmd":"sh","args":["-c","printf 'caf\\303'; printf '\\000\\377' >&2; until test -e go; do sleep 0.02; done; printf '\\251\\n'; exit 3"]}`)
	s := d.stream(t, path+"/stream")
	if first, ok := s.next(); !ok || first.name != "started" || first.id != "0.0" {
		t.Errorf("%+v", first)
	}
	var live told
	live.add(s, func() bool { return len(live.stdout) == 4 && len(live.stderr) == 2 })
	if got := request(t, d, d.key, "POST", "/v1/sandboxes/"+sb.ID+"/files", `{"path":"go","content":""}`); got.StatusCode != http.StatusCreated {
		t.Fatalf("%d %s", got.StatusCode, got.body)
	}
	live.add(s, nil)
	if how := live.exit(t); string(live.stdout) != "café\n" || string(live.stderr) != "\x00\xff" || how.ExitCode == nil || *how.ExitCode != 3 || how.Status != "exited" || how.TimedOut || how.Reason != nil {
		t.Errorf("%q %q %+v", live.stdout, live.stderr, how)
	}
	if live.last != "6.2" {
		t.Errorf("the last id is %s", live.last)
	}
	for range 2 { // while the sandbox runs, and after
		for _, id := range []string{"0.0", "4.0", "4.2", "6.2"} {
			var rest, header told
			rest.stdout, rest.stderr = seen(id, live)
			header.stdout, header.stderr = seen(id, live)
			rest.add(d.stream(t, path+"/stream?after="+id), nil)
			header.add(d.stream(t, path+"/stream", "Last-Event-ID", id), nil)
			for _, again := range []told{rest, header} {
				if string(again.stdout) != "café\n" || string(again.stderr) != "\x00\xff" || again.end != live.end {
					t.Errorf("after %s: %q %q %+v", id, again.stdout, again.stderr, again.end)
				}
			}
		}
		if _, err := d.remote().Sandboxes.Delete(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
	}
	refused := request(t, d, d.key, "GET", path+"/stream?after=1", "")
	checkRefusal(t, refused, 400, "invalid_request_error", "parameter_invalid", "after")
	refused = request(t, d, d.key, "GET", pathOf(sb.ID, "exe_01KBA3ZM2N9RX3Y5Z7W9V1S3Q5")+"/stream", "")
	checkRefusal(t, refused, 404, "invalid_request_error", "execution_not_found", "")
}

// seen is what a client at a position has.
func seen(id string, whole told) (stdout, stderr []byte) {
	var out, err int
	for i, part := range strings.Split(id, ".") {
		to := []*int{&out, &err}[i]
		*to = int(part[0] - '0')
	}
	return append([]byte{}, whole.stdout[:out]...), append([]byte{}, whole.stderr[:err]...)
}

// TestStreamTellsWhatFellOut: of 4 MiB the last is kept, and the gap is declared,
// while a reader that takes nothing holds nobody up.
func TestStreamTellsWhatFellOut(t *testing.T) {
	d := start(t)
	sb := create(t, d.remote(), microvm.SandboxCreate{Image: "python"})
	path := d.begin(t, sb.ID, `{"cmd":"sh","args":["-c","until test -e go; do sleep 0.02; done; head -c 4194304 /dev/zero | tr '\\000' x; echo end"]}`)
	stuck, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", d.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stuck.Close() }()
	if _, err := io.WriteString(stuck, "GET "+path+"/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+d.key+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := stuck.Read(make([]byte, 1)); err != nil { // it is served
		t.Fatal(err)
	}
	if got := request(t, d, d.key, "POST", "/v1/sandboxes/"+sb.ID+"/files", `{"path":"go","content":""}`); got.StatusCode != http.StatusCreated {
		t.Fatalf("%d %s", got.StatusCode, got.body)
	}
	const all = 4<<20 + 4
	exe, err := d.remote().Executions.Wait(t.Context(), sb.ID, path[strings.LastIndex(path, "/")+1:])
	if err != nil || exe.Status != "exited" || exe.StdoutBytes != all {
		t.Fatalf("%+v %v", exe, err)
	}
	var late told
	late.add(d.stream(t, path+"/stream"), nil)
	kept := int64(len(late.stdout))
	if kept > 1<<20 || kept < 1<<19 || late.lost+kept != all || !strings.HasSuffix(string(late.stdout), "xend\n") {
		t.Errorf("%d bytes are lost and %d kept", late.lost, kept)
	}
	late.exit(t)
}

// TestStreamGoesOnAfterAKilledDaemon: the client that connects again sees every
// line that was kept once. That the program goes on, too, is a matter of real
// microVMs: the fake's ends with its daemon.
func TestStreamGoesOnAfterAKilledDaemon(t *testing.T) {
	d := start(t)
	sb := create(t, d.remote(), microvm.SandboxCreate{Image: "python"})
	path := d.begin(t, sb.ID, `{"cmd":"sh","args":["-c","n=0; while :; do n=$((n+1)); echo $n; sleep 0.001; done"]}`)
	var all told
	all.add(d.stream(t, path+"/stream"), func() bool { return len(all.stdout) > 500 })
	d.kill(t)
	d.run(t)
	all.add(d.stream(t, path+"/stream?after="+all.last), nil)
	if how := all.exit(t); how.Status != "vanished" || how.Reason == nil || *how.Reason != "host_restarted" || how.ExitCode != nil || all.lost != 0 {
		t.Errorf("%+v, %d bytes lost", how, all.lost)
	}
	checkCount(t, all.stdout)
}

// checkCount wants the numbers from 1 on; the last may be cut.
func checkCount(t *testing.T, output []byte) {
	t.Helper()
	lines := strings.Split(string(output), "\n")
	for i, line := range lines[:len(lines)-1] {
		var n int
		if err := json.Unmarshal([]byte(line), &n); err != nil || n != i+1 {
			t.Fatalf("line %d is %q", i+1, line)
		}
	}
}

// TestStreamOfADaemonThatStops says why it ends, and where to go on.
func TestStreamOfADaemonThatStops(t *testing.T) {
	d := start(t, "--drain=false")
	sb := create(t, d.remote(), microvm.SandboxCreate{Image: "python"})
	path := d.begin(t, sb.ID, `{"cmd":"sh","args":["-c","echo hello; exec sleep 600"]}`)
	s := d.stream(t, path+"/stream")
	var all told
	all.add(s, func() bool { return len(all.stdout) == 6 })
	if code := d.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	all.add(s, nil)
	var wire microvm.StreamError
	all.end.decode(t, &wire)
	if all.end.name != "error" || all.end.id != "" || wire.Code != "shutting_down" || !strings.Contains(wire.Message, "reconnect with Last-Event-ID") {
		t.Errorf("%+v", all.end)
	}
	if _, err := s.lines.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream broke: %v", err)
	}
	d.killPrograms(t)
}
