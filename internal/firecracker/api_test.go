package firecracker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// vmm answers each connection with what f writes, after the request was read
// up to its empty line.
func vmm(f func(net.Conn)) func(context.Context) (net.Conn, error) {
	dial, _ := device(func(c net.Conn) {
		for {
			line, err := readLine(c, 1<<10)
			if err != nil {
				return
			}
			if line == "\r" {
				break
			}
		}
		go func() { _, _ = io.Copy(io.Discard, c) }() // the body, if any
		f(c)
	})
	return dial
}

// say writes, and waits for the other side to close.
func say(pieces ...string) func(net.Conn) {
	return func(c net.Conn) {
		for _, piece := range pieces {
			if _, err := io.WriteString(c, piece); err != nil {
				return
			}
		}
		silent(c)
	}
}

// cutOff writes, and closes once the other side waits for more.
func cutOff(text string) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = io.WriteString(c, text)
		synctest.Wait()
	}
}

const sayIt = `{"fault_message":"say\nit"}`

// drip writes the same again and again, one piece a second.
func drip(start, piece string) func(net.Conn) {
	return func(c net.Conn) {
		_, err := io.WriteString(c, start)
		for err == nil {
			time.Sleep(time.Second) // virtual
			_, err = io.WriteString(c, piece)
		}
	}
}

func flood(start, piece string) func(net.Conn) {
	return func(c net.Conn) {
		_, err := io.WriteString(c, start)
		for err == nil {
			_, err = io.WriteString(c, piece)
		}
	}
}

func TestAPIAgainstAHostileVMM(t *testing.T) {
	const head = "HTTP/1.1 400 Bad Request\r\n"
	for name, c := range map[string]struct {
		serve func(net.Conn)
		want  string
		limit time.Duration
	}{
		"silence":             {silent, "deadline exceeded", time.Minute},
		"hangs up":            {cutOff(""), "EOF", 0},
		"garbage":             {say("garbage\r\n\r\n"), "malformed HTTP response", 0},
		"slow head":           {drip("HTTP/1.1 204 No Content\r\n", "A: b\r\n"), "deadline exceeded", time.Minute},
		"endless head":        {flood("HTTP/1.1 204 No Content\r\n", "A: "+strings.Repeat("b", 1000)+"\r\n"), "exceeded", 0},
		"endless line":        {flood("HTTP/1.1 204 No Content\r\nA: ", strings.Repeat("b", 1000)), "exceeded", 0},
		"endless body":        {flood(head+"\r\n", strings.Repeat("b", 1000)), "over 65536 bytes", 0},
		"endless chunks":      {flood(head+"Transfer-Encoding: chunked\r\n\r\n", "400\r\n"+strings.Repeat("b", 1024)+"\r\n"), "over 65536 bytes", 0},
		"slow body":           {drip(head+"Content-Length: 60000\r\n\r\n", "b"), "deadline exceeded", time.Minute},
		"cut body":            {cutOff(head + "Content-Length: 60000\r\n\r\nb"), "unexpected EOF", 0},
		"endless 1xx":         {flood("", "HTTP/1.1 103 Early Hints\r\n\r\n"), "exceeded 8192 bytes", 0},
		"redirect":            {say("HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"), "status 302", 0},
		"200 for 204":         {say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"), "status 200: no fault_message", 0},
		"wrong types":         {say(head + "Content-Length: 22\r\n\r\n" + `{"fault_message":[{}]}`), "no fault_message", 0},
		"fault":               {say(head + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(sayIt)) + sayIt), `PUT /x: status 400: "say\nit"`, 0},
		"switching protocols": {say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"), "switched protocols", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAPI(vmm(c.serve))
				defer a.close()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				began := time.Now()
				err := a.put(ctx, "/x", action{Type: "InstanceStart"})
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("want %q, got %v", c.want, err)
				}
				if err != nil && len(err.Error()) > 500 {
					t.Errorf("error has %d bytes", len(err.Error()))
				}
				if took := time.Since(began); took > c.limit {
					t.Errorf("took %v", took)
				}
				time.Sleep(2 * time.Second) // virtual: whoever drips finds the connection closed
			})
		})
	}
}

func TestAPIBoundsACallWithoutDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(vmm(silent))
		defer a.close()
		_, err := a.info(t.Context())
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestLongFaultMessageIsCut(t *testing.T) {
	err := faultMessage([]byte(`{"fault_message":"` + strings.Repeat("x", 10_000) + `"}`))
	if len(err.Error()) != apiMessage+2 {
		t.Errorf("%d bytes", len(err.Error()))
	}
}

func TestAPISpeaksOneRequestAtATime(t *testing.T) {
	var seen []string
	listener, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen = append(seen, fmt.Sprintf("%s %s %s %s", r.Method, r.URL.Path, r.Header.Get("Content-Type"), body))
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, `{"id":"sb-x","state":"Not started","vmm_version":"1.17.0","app_name":"Firecracker"}`)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	defer func() { _ = server.Close() }()
	a := newAPI(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", listener.Addr().String())
	})
	defer a.close()
	info, err := a.info(t.Context())
	if err != nil || info.ID != "sb-x" || info.State != "Not started" {
		t.Errorf("%+v %v", info, err)
	}
	if err := a.put(t.Context(), "/vsock", vsockDevice{CID: 3, Path: "v.sock"}); err != nil {
		t.Error(err)
	}
	want := "GET / application/json \nPUT /vsock application/json {\"guest_cid\":3,\"uds_path\":\"v.sock\"}"
	if got := strings.Join(seen, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
