package httpapi

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/httpapi/gen"
)

// ticketFor makes a ticket through the API.
func (s *service) ticketFor(t *testing.T, path string) gen.Ticket {
	t.Helper()
	got := s.do(t, "POST", "/v1/tickets", `{"method":"GET","path":"`+path+`"}`)
	var made gen.Ticket
	if err := json.Unmarshal(got.body, &made); err != nil || got.StatusCode != http.StatusCreated {
		t.Fatalf("%d %s", got.StatusCode, got.body)
	}
	if made.Path != path || !regexp.MustCompile(`^mvt_[0-9a-f]{64}$`).MatchString(made.Ticket) || got.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%s", got.body)
	}
	return made
}

func noKey(r *http.Request) { r.Header.Del("Authorization") }

// TestTicketOpensOneDoorOnce: and leaves no trace in the log.
func TestTicketOpensOneDoorOnce(t *testing.T) {
	s := start(t)
	made := s.ticketFor(t, streamPath)
	other := s.ticketFor(t, terminalPath)
	if made.Ticket == other.Ticket {
		t.Error("two tickets are alike")
	}
	const another = "/v1/sandboxes/" + sandboxID + "/executions/exe_01KBA3ZM2N9RX3Y5Z7W9V1S3Q6/stream"
	for name, path := range map[string]string{
		"another execution":  another + "?ticket=" + made.Ticket,
		"the other route":    streamPath + "?ticket=" + other.Ticket,
		"a guess":            streamPath + "?ticket=mvt_" + strings.Repeat("0", 64),
		"a part":             streamPath + "?ticket=" + made.Ticket[:len(made.Ticket)-1],
		"upper case":         streamPath + "?ticket=" + strings.ToUpper(made.Ticket),
		"no ticket, nothing": streamPath + "?ticket=x",
	} {
		got := s.do(t, "GET", path, "", noKey)
		if detail := got.fault(t); detail.Code != gen.ErrorCodeTokenInvalid || !strings.Contains(detail.Message, "POST /v1/tickets") || !got.Close {
			t.Errorf("%s: %d %+v, closed %t", name, got.StatusCode, detail, got.Close)
		}
	}
	got := s.do(t, "GET", streamPath+"?after=0.0&ticket="+made.Ticket, "", noKey)
	if got.StatusCode != http.StatusOK || !strings.Contains(string(got.body), "event: exit") || got.Close {
		t.Errorf("%d %s, closed %t", got.StatusCode, got.body, got.Close)
	}
	if detail := s.do(t, "GET", streamPath+"?ticket="+made.Ticket, "", noKey).fault(t); detail.Code != gen.ErrorCodeTokenInvalid {
		t.Errorf("it opens twice: %+v", detail)
	}
	for path, param := range map[string]string{runPath: "ticket", "/v1/sandboxes": "ticket"} {
		got := s.do(t, "GET", path+"?ticket="+other.Ticket, "")
		if detail := got.fault(t); detail.Code != gen.ErrorCodeParameterInvalid || value(detail.Param) != param {
			t.Errorf("%s takes a ticket: %+v", path, detail)
		}
	}
	if detail := s.do(t, "POST", runPath+"/cancel?ticket="+other.Ticket, "", noKey).fault(t); detail.Code != gen.ErrorCodeTokenMissing {
		t.Errorf("a ticket cancels: %+v", detail)
	}
	both := s.do(t, "GET", streamPath+"?ticket="+made.Ticket, "")
	if detail := both.fault(t); detail.Code != gen.ErrorCodeParameterInvalid || value(detail.Param) != "ticket" {
		t.Errorf("key and ticket: %+v", detail)
	}
	s.Close() // the log is whole
	if log := s.log.String(); strings.Contains(log, "mvt_") || strings.Contains(log, made.Ticket[4:]) || !strings.Contains(log, `"code":"token_invalid"`) {
		t.Errorf("the log:\n%s", log)
	}
}

// TestTicketIsUsedUpByAFailure, too: who sees a request sees its ticket.
func TestTicketIsUsedUpByAFailure(t *testing.T) {
	s := start(t)
	made := s.ticketFor(t, streamPath)
	s.world.err = fault.New(fault.ExecutionNotFound, "no such execution; list them")
	for _, want := range []gen.ErrorCode{gen.ErrorCodeExecutionNotFound, gen.ErrorCodeTokenInvalid} {
		if detail := s.do(t, "GET", streamPath+"?ticket="+made.Ticket, "", noKey).fault(t); detail.Code != want {
			t.Errorf("%+v, want %s", detail, want)
		}
	}
}

func TestTicketLivesAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all tickets
		early, expires, err := all.make(streamPath)
		if err != nil || time.Until(expires) != time.Minute {
			t.Fatal(expires, err)
		}
		late, _, _ := all.make(streamPath)
		time.Sleep(time.Minute - time.Nanosecond)
		if err := all.redeem(early, "GET", streamPath); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Nanosecond)
		if err := all.redeem(late, "GET", streamPath); !fault.Is(err, fault.TokenInvalid) {
			t.Errorf("it opens after its minute: %v", err)
		}
	})
}

func TestTicketsAreForAMethod(t *testing.T) {
	var all tickets
	made, _, err := all.make(streamPath)
	if err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{"POST", "HEAD", "get", ""} {
		if err := all.redeem(made, method, streamPath); !fault.Is(err, fault.TokenInvalid) {
			t.Errorf("%s: %v", method, err)
		}
	}
	if err := all.redeem(made, "GET", streamPath); err != nil {
		t.Error(err)
	}
}

// TestTicketsAreBounded: as many as may be, then a refusal that says for how
// long; those that are used or over make room.
func TestTicketsAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		const body = `{"method":"GET","path":"` + streamPath + `"}`
		api := b.Handler.(*server)
		var last string
		for range maxTickets {
			made, _, err := api.tickets.make(streamPath)
			if err != nil {
				t.Fatal(err)
			}
			last = made
		}
		time.Sleep(20 * time.Second)
		got := b.post(t, "/v1/tickets", body)
		if detail := got.fault(t); got.StatusCode != http.StatusTooManyRequests || detail.Code != gen.ErrorCodeRateLimited || detail.Type != gen.ErrorTypeCapacityError || got.Header.Get("Retry-After") != "40" {
			t.Errorf("%d %+v after %s", got.StatusCode, detail, got.Header.Get("Retry-After"))
		}
		if err := api.tickets.redeem(last, "GET", streamPath); err != nil {
			t.Error(err)
		}
		if got := b.post(t, "/v1/tickets", body); got.StatusCode != http.StatusCreated {
			t.Errorf("one is used, and there is no room: %d", got.StatusCode)
		}
		seconds, _ := strconv.Atoi(b.post(t, "/v1/tickets", body).Header.Get("Retry-After"))
		time.Sleep(time.Duration(seconds) * time.Second)
		if got := b.post(t, "/v1/tickets", body); got.StatusCode != http.StatusCreated {
			t.Errorf("the others are over, and there is no room: %d", got.StatusCode)
		}
		if n := len(api.tickets.alive); n > 2 {
			t.Errorf("%d are kept", n)
		}
	})
}

// TestTicketOnTheUnixSocket: where no key is needed, a wrong ticket is wrong all
// the same.
func TestTicketOnTheUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := NewServer(handler(t, newWorld(), io.Discard), slog.New(slog.DiscardHandler))
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	defer serving.Wait()
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	defer client.CloseIdleConnections()
	for query, want := range map[string]int{"": 200, "?ticket=mvt_x": 401} {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x"+streamPath+query, nil)
		got, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, got.Body)
		got.Body.Close()
		if got.StatusCode != want {
			t.Errorf("%q: %d", query, got.StatusCode)
		}
	}
}
