package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microvmd/microvm/internal/httpapi/gen"
)

// bubble is a service in a synctest bubble: its connections are pipes that hold
// nothing, its time is its own, and a goroutine that stays behind fails the test.
type bubble struct {
	*Server
	world    *world
	log      *lockedBuffer
	listener *pipes
	client   *http.Client
}

func inBubble(t *testing.T, do func(t *testing.T, b *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{world: newWorld(), log: &lockedBuffer{}, listener: &pipes{conns: make(chan net.Conn), done: make(chan struct{})}}
		b.Server = NewServer(handler(t, b.world, b.log), slog.New(slog.DiscardHandler))
		var serving sync.WaitGroup
		serving.Go(func() { _ = b.Serve(b.listener) })
		transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return b.dial(), nil }}
		b.client = &http.Client{Transport: transport}
		defer func() { // also when do gives up: a bubble must be empty at its end
			transport.CloseIdleConnections()
			synctest.Wait()
			if t.Failed() {
				_ = b.Close()
			}
			if err := b.Shutdown(t.Context()); err != nil && !t.Failed() { // nothing is left to be waited for
				t.Error(err)
			}
			serving.Wait()
			time.Sleep(time.Minute) // net/http lingers after its last reply
		}()
		do(t, b)
	})
}

func (b *bubble) dial() net.Conn {
	ours, theirs := net.Pipe()
	b.listener.conns <- theirs
	return ours
}

const (
	runPath      = "/v1/sandboxes/" + sandboxID + "/executions/" + executionID
	streamPath   = runPath + "/stream"
	terminalPath = runPath + "/terminal"
)

// get begins a request; its reply's body is the caller's.
func (b *bubble) get(t *testing.T, path string, header ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(path, "ticket=") {
		r.Header.Set("Authorization", "Bearer "+goodToken)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	got, err := b.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// post sends JSON and returns the reply with its body read.
func (b *bubble) post(t *testing.T, path, body string) reply {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://x"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+goodToken)
	r.Header.Set("Content-Type", "application/json")
	got, err := b.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	content, err := io.ReadAll(got.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{got, content}
}

func refusal(t *testing.T, got *http.Response) gen.ErrorDetail {
	t.Helper()
	defer got.Body.Close()
	content, err := io.ReadAll(got.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{got, content}.fault(t)
}

// streamed is one event as a client reads it, or a comment.
type streamed struct{ id, name, data, comment string }

func (s streamed) output(t *testing.T) gen.StreamOutput {
	t.Helper()
	var wire gen.StreamOutput
	s.decode(t, &wire)
	return wire
}

func (s streamed) decode(t *testing.T, to any) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(s.data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(to); err != nil {
		t.Fatalf("%s: %v: %s", s.name, err, s.data)
	}
}

// eventReader reads server-sent events as their standard says.
type eventReader struct{ lines *bufio.Reader }

func readEvents(r io.Reader) *eventReader { return &eventReader{bufio.NewReader(r)} }

func (r *eventReader) next() (streamed, error) {
	var event streamed
	for {
		line, err := r.lines.ReadString('\n')
		if err != nil {
			return event, err
		}
		line = strings.TrimSuffix(line, "\n")
		field, value, _ := strings.Cut(line, ": ")
		switch field {
		case "id":
			event.id = value
		case "event":
			event.name = value
		case "data":
			event.data += value
		case "":
			if line != "" { // a comment
				event.comment = value
				continue
			}
			return event, nil
		}
	}
}

// all reads events to the end of the stream, which must be a proper one.
func (r *eventReader) all(t *testing.T) []streamed {
	t.Helper()
	var all []streamed
	for {
		event, err := r.next()
		if err == io.EOF { //nolint:errorlint // the end itself
			return all
		}
		if err != nil {
			t.Fatalf("the stream broke after %v: %v", all, err)
		}
		all = append(all, event)
	}
}

// joined is what events say of one stream. None of its bytes may be missing.
func joined(t *testing.T, events []streamed, stream string, from int64) []byte {
	t.Helper()
	var all bytes.Buffer
	for _, event := range events {
		if event.name != stream {
			continue
		}
		wire := event.output(t)
		if wire.Offset != from {
			t.Fatalf("%s goes on at %d, want %d", stream, wire.Offset, from)
		}
		from += int64(len(wire.Data))
		all.Write(wire.Data)
	}
	return all.Bytes()
}
