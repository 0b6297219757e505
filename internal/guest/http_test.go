package guest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
)

// exchange writes raw text to an agent and reads one reply.
func (b *box) exchange(t testing.TB, text string) (status int, body string, more bool) {
	t.Helper()
	conn, err := net.Dial("unix", b.sock)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	written := make(chan error, 1)
	go func() {
		_, err := io.WriteString(conn, text)
		written <- err
	}()
	reader := bufio.NewReader(conn)
	reply, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatalf("%.60q: %v", text, err)
	}
	data, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatalf("%.60q: %v", text, err)
	}
	if half, ok := conn.(*net.UnixConn); ok {
		_ = half.CloseWrite()
	}
	rest, _ := io.ReadAll(reader)
	_ = conn.Close()
	<-written
	return reply.StatusCode, string(data), len(rest) > 0
}

func TestMalformedRequestsAreRefused(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	long := strings.Repeat("a", maxHeader)
	for _, text := range []string{
		"GET /v1/echo HTTP/1.0\r\n\r\n",
		"GET /v1/echo\r\n\r\n",
		"GET  /v1/echo HTTP/1.1\r\n\r\n",
		"GET http://guest/v1/echo HTTP/1.1\r\n\r\n",
		"GET /v1/echo?text=%zz HTTP/1.1\r\n\r\n",
		"GET /v1/echo HTTP/1.1\n\n",
		"GET /v1/echo HTTP/1.1\r\nno colon\r\n\r\n",
		"GET /v1/echo HTTP/1.1\r\nspace : a\r\n\r\n",
		"GET /v1/echo HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
		"GET /v1/echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
		"GET /v1/echo HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
		"GET /v1/echo HTTP/1.1\r\nContent-Length:\r\n\r\n",
		"GET /v1/echo HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
		"GET /v1/echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
		"GET /v1/echo?text=" + long + " HTTP/1.1\r\n\r\n",
		"GET /v1/echo HTTP/1.1\r\nX: " + long + "\r\n\r\n",
		"GET /v1/echo HTTP/1.1\r\n" + strings.Repeat("X: y\r\n", maxFields+1) + "\r\n",
	} {
		status, body, more := b.exchange(t, text)
		if status != 400 || !strings.Contains(body, "bad_request") || more {
			t.Errorf("%.60q: %d %s", text, status, body)
		}
	}
}

func TestOversizeBodiesAreRefused(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	big := script(strings.Repeat("a", guestwire.MaxRequestBody))
	if _, err := b.begin(t, "a", big); !guestwire.Refused(err, guestwire.BadRequest) {
		t.Errorf("got %v", err)
	}
	for _, body := range []string{"", "{", "[]", `{"cmd":1}`, `{"cmd":"true","unknown":1}`, `{"cmd":"true"}{}`, strings.Repeat(`{"env":`, 10_100)} {
		text := fmt.Sprintf("PUT /v1/executions/a HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		if status, reply, _ := b.exchange(t, text); status != 400 {
			t.Errorf("%.40q: %d %s", body, status, reply)
		}
	}
	for _, path := range []string{"/", "/v1/executions/..", "/v1/executions/a%2Fb", "/v1/executions/" + strings.Repeat("a", 65), "/v1/executions/a/b/c"} {
		if status, reply, _ := b.exchange(t, "PUT "+path+" HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"); status != 400 {
			t.Errorf("%s: %d %s", path, status, reply)
		}
	}
}

// Requests follow each other on one connection, with bodies nobody reads.
func TestConnectionServesAgain(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	one := "POST /v1/nothing HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;ext\r\nabc\r\n0\r\nTrailer: x\r\n\r\n"
	status, _, more := b.exchange(t, one+"GET /v1/echo?text=x HTTP/1.1\r\nHost: guest\r\n\r\n")
	if status != 400 || !more {
		t.Errorf("status %d, second answered: %v", status, more)
	}
	if status, _, more := b.exchange(t, "GET /v1/echo?text=x HTTP/1.1\r\nConnection: close\r\n\r\n"+one); status != 200 || more {
		t.Errorf("status %d, answered after close: %v", status, more)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	var conns []net.Conn
	defer func() {
		for _, conn := range conns {
			_ = conn.Close()
		}
	}()
	for range maxConns - 1 { // one is the client's that configured
		conn, err := net.Dial("unix", b.sock)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		if _, err := io.WriteString(conn, "GET /v1/echo?text=x HTTP/1.1\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := net.Dial("unix", b.sock)
	if err != nil {
		t.Fatal(err)
	}
	conns = append(conns, conn)
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("one connection too many was served: %d %v", n, err)
	}
}

func TestChunkedBodies(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"0\r\n\r\n":                              "",
		"3\r\nabc\r\n0\r\n\r\n":                  "abc",
		"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n":   "abcde",
		"00A\r\n0123456789\r\n0\r\nA: b\r\n\r\n": "0123456789",
		"":                                       "error",
		"3\r\nab":                                "error",
		"3\r\nabcd\r\n0\r\n\r\n":                 "error",
		"3\r\nabc\r\n":                           "error",
		"-1\r\n\r\n":                             "error",
		"x\r\n\r\n":                              "error",
		"0\r\n":                                  "error",
		"7fffffffffffffff\r\nabc":                "error",
		strings.Repeat("0", 500):                 "error",
		"1" + strings.Repeat(" ", 400) + "\r\na\r\n0\r\n\r\n": "error",
	} {
		for _, slow := range []bool{false, true} {
			var in io.Reader = strings.NewReader(text)
			if slow {
				in = iotest.OneByteReader(in)
			}
			got, err := io.ReadAll(&chunkReader{in: bufio.NewReader(in)})
			if (err != nil) != (want == "error") || err == nil && string(got) != want {
				t.Errorf("%.40q: got %q, %v", text, got, err)
			}
		}
	}
}

// Whatever comes, the server neither panics nor reads a body past its end.
func FuzzReadRequest(f *testing.F) {
	f.Add("GET /v1/echo?text=x HTTP/1.1\r\nHost: guest\r\n\r\n")
	f.Add("PUT /v1/files?path=a&mode=0644 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
	f.Add("POST /v1/executions/a/pull HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := readRequest(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			return
		}
		n, _ := io.Copy(io.Discard, r.body)
		if n > int64(len(text)) || !strings.HasPrefix(r.path, "/") {
			t.Errorf("body of %d bytes out of %d", n, len(text))
		}
		for _, known := range routes {
			if known.match(r) && strings.Contains(r.id, "/") {
				t.Errorf("id %q", r.id)
			}
		}
	})
}

// Whatever a body says, it becomes a request within its bounds or a refusal.
func FuzzRequestBodies(f *testing.F) {
	f.Add(uint8(0), `{"cmd":"sh","args":["-c","true"],"cwd":"a","user":"root","env":{"A":"b"},"stdin_open":true,"tty":{"rows":24,"cols":80},"pull":{"stdout":1,"wait_ms":5}}`)
	f.Add(uint8(0), `{"cmd":"true","tty":{"rows":0,"cols":-1}}`)
	f.Add(uint8(0), `{"cmd":"a\u0000b"}{}`)
	f.Add(uint8(1), `{"generation":1,"hostname":"sb-1","time_ns":1,"entropy":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","user":"user","workdir":"/workspace","env":{}}`)
	f.Add(uint8(1), `{"generation":-1}`)
	f.Add(uint8(2), `{"stdout":9223372036854775807,"stderr":-1,"wait_ms":20001}`)
	f.Add(uint8(3), `{"signal":"SIGTERM"}`)
	f.Add(uint8(4), `{"rows":1000,"cols":1001}`)
	f.Fuzz(func(t *testing.T, kind uint8, text string) {
		var err error
		switch body := strings.NewReader(text); kind % 5 {
		case 0:
			var start guestwire.Start
			if err = decode(body, &start); err == nil {
				err = checkStart(start)
			}
			if err == nil && (start.Cmd == "" || strings.ContainsRune(strings.Join(start.Args, ""), 0) || start.TTY != nil && checkSize(*start.TTY) != nil) {
				t.Errorf("%+v", start)
			}
		case 1:
			var conf guestwire.Configure
			if err = decode(body, &conf); err == nil {
				err = checkConfigure(conf)
			}
			if err == nil && (conf.Generation < 1 || len(conf.Entropy) < 32 || !strings.HasPrefix(conf.Workdir, "/") || !validHostname(conf.Hostname)) {
				t.Errorf("%+v", conf)
			}
		case 2:
			var pull guestwire.Pull
			e := &execution{changed: make(chan struct{}), streams: [2]tail{{budget: &budget{}}, {budget: &budget{}}}}
			if err = decode(body, &pull); err == nil {
				err = e.acknowledge([2]int64{pull.Stdout, pull.Stderr}, pull.WaitMS)
			}
			if err == nil && (pull.Stdout != 0 || pull.Stderr != 0 || pull.WaitMS < 0 || pull.WaitMS > guestwire.MaxPullWait) {
				t.Errorf("%+v", pull)
			}
		case 3:
			err = decode(body, new(guestwire.Signal))
		case 4:
			var size guestwire.Size
			if err = decode(body, &size); err == nil {
				err = checkSize(size)
			}
			if err == nil && (min(size.Rows, size.Cols) < 1 || max(size.Rows, size.Cols) > guestwire.MaxTerminal) {
				t.Errorf("%+v", size)
			}
		}
		if err != nil && !guestwire.Refused(err, guestwire.BadRequest) {
			t.Errorf("%.100q: %v", text, err)
		}
	})
}

// Whatever a query says, a feed is within its bounds.
func FuzzReadFeed(f *testing.F) {
	f.Add("offset=0&close=false&wait_ms=0", int64(5))
	f.Add("offset=9223372036854775807&close=true&wait_ms=20000", int64(guestwire.MaxStdin))
	f.Add("offset=-1&close=1&wait_ms=20001", int64(-1))
	f.Fuzz(func(t *testing.T, text string, length int64) {
		query, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		got, err := readFeed(&request{query: query, length: length, body: strings.NewReader("")})
		if err != nil {
			if !guestwire.Refused(err, guestwire.BadRequest) {
				t.Error(err)
			}
			return
		}
		if got.offset < 0 || got.offset+got.size < got.offset || got.size < 0 || got.size > guestwire.MaxStdin || time.Until(got.until) > long {
			t.Errorf("%+v", got)
		}
	})
}

// A user is found in whatever the guest has in its place, or is not.
func FuzzLookupAccount(f *testing.F) {
	f.Add("root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n", "sudo:x:27:user\n")
	f.Add("user:x:4294967295:1:::\n", strings.Repeat("g:x:1:user\n", 100))
	f.Add("user:::\nuser:x:-1:0:::\n", ":::")
	f.Fuzz(func(t *testing.T, passwd, group string) {
		etc := t.TempDir()
		for name, text := range map[string]string{"passwd": passwd, "group": group} {
			if err := os.WriteFile(filepath.Join(etc, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		who, err := lookupAccount(etc, "user")
		if err != nil && !guestwire.Refused(err, guestwire.UserNotFound) || err == nil && (who.name != "user" || len(who.groups) > maxGroups) {
			t.Errorf("%+v %v", who, err)
		}
	})
}

func TestAccounts(t *testing.T) {
	t.Parallel()
	etc := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(etc, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("passwd", "# comment\nroot:x:0:0:root:/root:/bin/bash\nbroken:x:1\nuser:x:1000:1000:,,,:/home/user:/bin/sh\nhuge:x:4294967296:1::/:\nnegative:x:-1:1::/:\n")
	write("group", "root:x:0:\nuser:x:1000:\nsudo:x:27:other,user\naudio:x:29:user\nbroken:x:y:user\nuserx:x:30:userx\n")
	who, err := lookupAccount(etc, "user")
	if err != nil || who.uid != 1000 || who.gid != 1000 || who.home != "/home/user" || who.shell != "/bin/sh" || fmt.Sprint(who.groups) != "[27 29]" {
		t.Errorf("user: %+v %v", who, err)
	}
	if who, err := lookupAccount(etc, "root"); err != nil || who.uid != 0 || len(who.groups) != 0 {
		t.Errorf("root: %+v %v", who, err)
	}
	for _, name := range []string{"", "none", "broken", "huge", "negative", "# comment", "user:x"} {
		if who, err := lookupAccount(etc, name); !guestwire.Refused(err, guestwire.UserNotFound) {
			t.Errorf("%q: %+v %v", name, who, err)
		}
	}
	write("passwd", strings.Repeat("a", maxAccountFile)+"\nuser:x:1000:1000::/:\n")
	if _, err := lookupAccount(etc, "user"); !guestwire.Refused(err, guestwire.UserNotFound) {
		t.Errorf("oversize passwd: %v", err)
	}
}

// Root may become the user; anybody else is told that it cannot be done.
func TestProgramsRunAsTheUser(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		b := newBareBox(t, asUser)
		b.addUser(t)
		_, err := b.Configure(t.Context(), configuration(1))
		if !guestwire.Refused(err, guestwire.PermissionDenied) && !guestwire.Refused(err, guestwire.Failed) {
			t.Errorf("configure without rights: %v", err)
		}
		return
	}
	b := newUserBox(t)
	secret := filepath.Join(b.root, "secret")
	if err := os.Mkdir(secret, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(secret, "x"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	o := b.run(t, "a", script("id -u; id -g; id -G; echo $HOME $USER; touch made"))
	if string(o.out) != "12345\n12346\n12346 12347\n/home/user user\n" || o.code(t) != 0 {
		t.Errorf("got %q %q", o.out, o.err)
	}
	if o := b.run(t, "r", guestwire.Start{Cmd: "id", Args: []string{"-u"}, User: "root"}); string(o.out) != "0\n" {
		t.Errorf("root: got %q %q", o.out, o.err)
	}
	for start, want := range map[string]guestwire.Code{"/secret": guestwire.BadDirectory, "": guestwire.PermissionDenied} {
		_, err := b.begin(t, "b", guestwire.Start{Cmd: filepath.Join(secret, "x"), Cwd: start})
		if !guestwire.Refused(err, want) {
			t.Errorf("directory %q: %v", start, err)
		}
	}
	if _, err := b.WriteFile(t.Context(), "new/file", 0o600, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	o = b.run(t, "c", script("cat new/file && rm -r new && stat -c %u made ."))
	if string(o.out) != "x12345\n12345\n" {
		t.Errorf("got %q %q", o.out, o.err)
	}
}
