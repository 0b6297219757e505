package httpapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/httpapi/gen"
)

// dial sends text over a connection of its own.
func (s *service) dial(t *testing.T, text string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

func request(method, path, more string) string {
	return method + " " + path + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + goodToken + "\r\n" + more + "\r\n"
}

func readReply(t *testing.T, conn io.Reader) reply {
	t.Helper()
	got, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal("the reply is lost:", err)
	}
	defer got.Body.Close()
	content, err := io.ReadAll(got.Body)
	if err != nil {
		t.Fatal("the reply is cut:", err)
	}
	return reply{got, content}
}

// TestTooLargeWithoutReset: callers that send all of a body that is too large
// before they look for a reply get the 413, and no reset.
func TestTooLargeWithoutReset(t *testing.T) {
	const size = 8 << 20 // far over the limit, and over what sockets buffer
	chunk := strings.Repeat(" ", 1<<20)
	for name, test := range map[string]struct {
		header string
		send   func(io.Writer) error
	}{
		"announced": {fmt.Sprintf("Content-Length: %d\r\n", size), func(w io.Writer) error {
			for range size / len(chunk) {
				if _, err := io.WriteString(w, chunk); err != nil {
					return err
				}
			}
			return nil
		}},
		"chunked": {"Transfer-Encoding: chunked\r\n", func(w io.Writer) error {
			for range size / len(chunk) {
				if _, err := fmt.Fprintf(w, "%x\r\n%s\r\n", len(chunk), chunk); err != nil {
					return err
				}
			}
			_, err := io.WriteString(w, "0\r\n\r\n")
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			conn := s.dial(t, request("POST", "/v1/sandboxes", "Content-Type: application/json\r\n"+test.header))
			if err := test.send(conn); err != nil {
				t.Fatal("the connection broke while the body was sent:", err)
			}
			got := readReply(t, conn)
			if detail := got.fault(t); got.StatusCode != http.StatusRequestEntityTooLarge || detail.Code != gen.ErrorCodePayloadTooLarge {
				t.Errorf("%d %s", got.StatusCode, detail.Code)
			}
		})
	}
	t.Run("twice the limit", func(t *testing.T) {
		s := start(t)
		got := s.do(t, "POST", "/v1/sandboxes", strings.Repeat(" ", 2*bodyLimit))
		if got.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("status %d", got.StatusCode)
		}
	})
}

// TestRefusedOnTheHeader: a body of 1 GiB is refused before a byte of it came,
// also for a caller who asks first.
func TestRefusedOnTheHeader(t *testing.T) {
	for name, more := range map[string]string{"sends": "", "asks": "Expect: 100-continue\r\n"} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			conn := s.dial(t, request("POST", "/v1/sandboxes", "Content-Type: application/json\r\nContent-Length: 1073741824\r\n"+more))
			if got := readReply(t, conn); got.StatusCode != http.StatusRequestEntityTooLarge { // a 100 would be read here
				t.Errorf("status %d", got.StatusCode)
			}
		})
	}
}

func TestExpectContinueIsHonoured(t *testing.T) {
	s := start(t)
	conn := s.dial(t, request("POST", "/v1/sandboxes", "Content-Type: application/json\r\nContent-Length: 18\r\nExpect: 100-continue\r\n"))
	reader := bufio.NewReader(conn)
	line, err := reader.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "HTTP/1.1 100 ") {
		t.Fatalf("%q %v", line, err)
	}
	if _, err := reader.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, `{"image":"python"}`); err != nil {
		t.Fatal(err)
	}
	if got := readReply(t, reader); got.StatusCode != http.StatusCreated {
		t.Errorf("status %d", got.StatusCode)
	}
}

// zeros is size bytes that take no memory.
type zeros struct{ left int64 }

func (z *zeros) Read(p []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), z.left)
	z.left -= n
	clear(p[:n])
	return int(n), nil
}

func (z *zeros) Close() error { return nil }

// TestTransfersAreFlat moves 64 MiB each way and bounds what is allocated in
// all, by server and client, whether it was freed or not.
func TestTransfersAreFlat(t *testing.T) {
	const size, most = 64 << 20, 8 << 20
	s := start(t)
	path := s.URL + "/v1/sandboxes/" + sandboxID + "/files"
	plain := &http.Client{Transport: s.Client().Transport} // the contract's holds replies
	measure := func(what string, move func()) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		move()
		runtime.ReadMemStats(&after)
		if grown := after.TotalAlloc - before.TotalAlloc; grown > most {
			t.Errorf("%s of %d MiB allocated %d MiB", what, size>>20, grown>>20)
		}
	}
	send := func(method, url string, body io.Reader) int64 {
		r, err := http.NewRequestWithContext(t.Context(), method, url, body)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+goodToken)
		got, err := plain.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer got.Body.Close()
		n, err := io.Copy(io.Discard, got.Body)
		if err != nil || got.StatusCode > 201 {
			t.Fatal(got.StatusCode, err)
		}
		return n
	}
	measure("upload", func() { send("PUT", path+"/content?path=a", &zeros{left: size}) })
	archives := s.URL + "/v1/sandboxes/" + sandboxID + "/archive?path=a"
	for what, to := range map[string]string{"upload": path + "/content?path=a", "append": path + "/content?path=a&append_at=1", "unpacking": archives} {
		s.world.files.written = 0
		measure(what, func() { send("PUT", to, &zeros{left: size}) })
		if s.world.files.written != size {
			t.Errorf("%s: %d bytes arrived", what, s.world.files.written)
		}
	}
	for what, from := range map[string]string{"download": path + "?path=a", "packing": archives} {
		measure(what, func() {
			s.world.files.body, s.world.files.entry.Size = &zeros{left: size}, size
			if n := send("GET", from, nil); n != size {
				t.Errorf("%s: %d bytes came back", what, n)
			}
		})
	}
}

// TestBrokenDownloadIsSeen: a file that ends early ends the connection.
func TestBrokenDownloadIsSeen(t *testing.T) {
	const half = 1 << 20 // more than is buffered
	for name, body := range map[string]io.Reader{
		"ends early":  &zeros{left: half},
		"fails":       io.MultiReader(&zeros{left: half}, errReader{errors.New("guest is gone")}),
		"fails early": errReader{errors.New("guest is gone")},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			s.world.files.body, s.world.files.entry.Size = io.NopCloser(body), 2*half
			for _, header := range []string{"", "Range: bytes=5-\r\n"} {
				if err := s.cut(t, "/files?path=a", header); !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("the caller takes half a file for a whole one: %v", err)
				}
			}
		})
	}
}

// cut is the error with which a reply ends.
func (s *service) cut(t *testing.T, path, header string) error {
	conn := s.dial(t, request("GET", "/v1/sandboxes/"+sandboxID+path, header))
	got, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err // it was cut before its header was sent
	}
	defer got.Body.Close()
	_, err = io.ReadAll(got.Body)
	return err
}

// TestErrorAmidUpload: a guest whose disk is full answers before the body is
// here; the caller, who sends on, gets that answer.
func TestErrorAmidUpload(t *testing.T) {
	s := start(t)
	s.world.err = fault.New(fault.FullGuestDisk, "the disk is full")
	const size = 8 << 20
	conn := s.dial(t, request("PUT", "/v1/sandboxes/"+sandboxID+"/files/content?path=a", fmt.Sprintf("Content-Length: %d\r\n", size)))
	if _, err := io.Copy(conn, &zeros{left: size}); err != nil {
		t.Fatal(err)
	}
	if got := readReply(t, conn); got.StatusCode != http.StatusInsufficientStorage {
		t.Errorf("status %d", got.StatusCode)
	}
}

func TestPanicIsAnError(t *testing.T) {
	s := start(t)
	s.world.panics = true
	got := s.do(t, "GET", "/v1/images", "")
	if detail := got.fault(t); got.StatusCode != http.StatusInternalServerError || strings.Contains(string(got.body), "secret") {
		t.Errorf("%d %+v", got.StatusCode, detail)
	}
	s.Close() // the log is whole
	if !strings.Contains(s.log.String(), "secret of a panic") || !strings.Contains(s.log.String(), "fake_test.go") {
		t.Error("the log has no cause or stack")
	}
}

func TestKeysAreWanted(t *testing.T) {
	s := start(t)
	for name, test := range map[string]struct {
		values []string
		code   gen.ErrorCode
	}{
		"none":       {nil, gen.ErrorCodeTokenMissing},
		"wrong":      {[]string{"Bearer mvk_bad"}, gen.ErrorCodeTokenInvalid},
		"basic":      {[]string{"Basic bXZrX2dvb2Q="}, gen.ErrorCodeTokenInvalid},
		"no scheme":  {[]string{goodToken}, gen.ErrorCodeTokenInvalid},
		"empty":      {[]string{"Bearer "}, gen.ErrorCodeTokenInvalid},
		"two":        {[]string{"Bearer " + goodToken, "Bearer " + goodToken}, gen.ErrorCodeTokenInvalid},
		"lower case": {[]string{"bearer " + goodToken}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for path := range map[string]bool{"/v1/sandboxes": true, "/v1/images": true, "/v1/sandboxes/" + sandboxID + "/files?path=a": true} {
				got := s.do(t, "GET", path, "", func(r *http.Request) { r.Header["Authorization"] = test.values })
				if test.code == "" {
					if got.StatusCode != http.StatusOK {
						t.Errorf("%s: %d", path, got.StatusCode)
					}
				} else if detail := got.fault(t); detail.Code != test.code || got.StatusCode != http.StatusUnauthorized || got.Header.Get("WWW-Authenticate") == "" {
					t.Errorf("%s: %d %s", path, got.StatusCode, detail.Code)
				}
			}
		})
	}
}

// TestOnlyAKeyKeepsAConnection: connections are bounded, and one that nobody
// answers for is not kept idle.
func TestOnlyAKeyKeepsAConnection(t *testing.T) {
	s := start(t)
	for path, want := range map[string][2]bool{ // closed without a key, and with one
		"/v1/images": {true, false},
		"/v1/health": {true, true},
		"/no/route":  {true, true},
	} {
		for i, key := range [][]string{nil, {"Bearer " + goodToken}} {
			got := s.do(t, "GET", path, "", func(r *http.Request) { r.Header["Authorization"] = key })
			if got.Close != want[i] {
				t.Errorf("%s, keys %v: closed is %t", path, key, got.Close)
			}
		}
	}
}

func TestUnixSocketNeedsNoKey(t *testing.T) {
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
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/v1/sandboxes", nil)
	got, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	if got.StatusCode != http.StatusOK {
		t.Errorf("status %d", got.StatusCode)
	}
}

func TestLogHoldsNoSecrets(t *testing.T) {
	s := start(t)
	s.do(t, "POST", "/v1/sandboxes", `{"image":"in-the-body","tags":"in-the-body"}`)
	s.do(t, "POST", "/v1/sandboxes", `{"image":"in-the-body`)
	s.do(t, "GET", "/v1/sandboxes?name=in-the-query", "")
	s.do(t, "GET", "/v1/sandboxes?limit=in-the-query", "")
	s.do(t, "GET", "/v1/sandboxes/in-the-path", "", func(r *http.Request) { r.Header.Set("Authorization", "Bearer mvk_in-a-token") })
	s.do(t, "GET", "/in-the-path", "")
	s.Close() // waits for the last line
	log := s.log.String()
	for _, secret := range []string{"in-the-", "in-a-", goodToken} {
		if strings.Contains(log, secret) {
			t.Errorf("the log holds %q:\n%s", secret, log)
		}
	}
	for _, want := range []string{`"route":"GET /v1/sandboxes/{sandbox}"`, `"status":400`, `"method":"POST"`, `"duration":`, `"request_id":"req_`, `"code":"token_invalid"`} {
		if !strings.Contains(log, want) {
			t.Errorf("the log has no %s:\n%s", want, log)
		}
	}
}

func TestHeaderHasALimit(t *testing.T) {
	s := start(t)
	conn := s.dial(t, request("GET", "/v1/health", "X: "+strings.Repeat("x", 2*maxHeader)+"\r\n"))
	got, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	if got.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("status %d", got.StatusCode)
	}
}

// pipes is a listener whose connections live in a synctest bubble.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

// TestSlowCallers: the header and the body of a caller who stands still, or
// drips, end at their bounds; one that is only slow gets through.
func TestSlowCallers(t *testing.T) {
	head := request("PUT", "/v1/sandboxes/"+sandboxID+"/files/content?path=a", "Content-Length: 1000000\r\n")
	drip := func(piece int, every time.Duration) func(net.Conn) {
		return func(conn net.Conn) {
			_, _ = io.WriteString(conn, head)
			for sent := 0; sent < 1_000_000; sent += piece {
				time.Sleep(every)
				if _, err := conn.Write(make([]byte, min(piece, 1_000_000-sent))); err != nil {
					return
				}
			}
		}
	}
	for name, test := range map[string]struct {
		send   func(net.Conn)
		status int // 0: the connection ends without a reply
		after  time.Duration
	}{
		"no header":    {func(net.Conn) {}, 0, headerTimeout},
		"half header":  {func(c net.Conn) { _, _ = io.WriteString(c, head[:20]) }, 400, headerTimeout}, // net/http's own
		"no body":      {func(c net.Conn) { _, _ = io.WriteString(c, head) }, 400, readStall},
		"drips":        {drip(1, 20*time.Second), 400, readGrace},
		"slow is fine": {drip(64<<10, 20*time.Second), 201, 16 * 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				listener := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
				server := NewServer(handler(t, newWorld(), io.Discard), slog.New(slog.DiscardHandler))
				var background sync.WaitGroup
				background.Go(func() { _ = server.Serve(listener) })
				ours, theirs := net.Pipe()
				listener.conns <- theirs
				began := time.Now()
				background.Go(func() { test.send(ours) })
				got, err := http.ReadResponse(bufio.NewReader(ours), nil)
				took := time.Since(began)
				switch {
				case test.status == 0 && err == nil:
					t.Errorf("a reply came: %d", got.StatusCode)
				case test.status != 0 && err != nil:
					t.Errorf("no reply came: %v", err)
				case test.status != 0 && got.StatusCode != test.status:
					t.Errorf("status %d", got.StatusCode)
				}
				if took < test.after-time.Second || took > test.after+5*time.Second {
					t.Errorf("it took %s, want about %s", took, test.after)
				}
				if err == nil {
					got.Body.Close()
				}
				ours.Close()
				_ = server.Close()
				background.Wait()
				time.Sleep(time.Minute) // net/http lingers after its last reply
			})
		})
	}
}
