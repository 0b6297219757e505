package httpapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/ident"
)

// Bounds on slow and large callers. Bodies have bounds of their own, see body.
const (
	headerTimeout = 10 * time.Second // for a whole request header
	idleTimeout   = 2 * time.Minute  // between two requests of a connection
	maxHeader     = 32 << 10         // bytes; net/http adds 4 KiB of slack
	writeStall    = 30 * time.Second // a reader that takes nothing for this long is cut off
	minWriteRate  = 16 << 10         // bytes/s, of one large write
)

// Server is an http.Server whose Shutdown ends streams and terminals, too.
type Server struct {
	*http.Server
	watches *watches
}

// NewServer makes a server for a handler of New, with the bounds that the API
// needs on its connections. Its listeners and its end are the caller's. It sets
// no bound on a whole request: uploads and streams may be long, and each of
// their reads and writes is bounded (see body and exchange).
func NewServer(handler http.Handler, logger *slog.Logger) *Server {
	s := &Server{
		Server: &http.Server{
			Handler:           handler,
			ConnContext:       ConnContext,
			ReadHeaderTimeout: headerTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    maxHeader,
			ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
		},
		watches: &watches{},
	}
	if api, ok := handler.(*server); ok {
		s.watches = &api.watches
	}
	return s
}

// Shutdown is as http.Server's, which neither ends streams nor knows of
// connections that have become WebSockets: here both end first, told why.
func (s *Server) Shutdown(ctx context.Context) error {
	s.watches.stop()
	return errors.Join(s.Server.Shutdown(ctx), s.watches.wait(ctx))
}

type (
	trustedKey  struct{}
	exchangeKey struct{}
)

// ConnContext marks connections that need no key: those of a Unix socket. The
// listener's maker answers for the socket's owner and mode (root, 0600). It is
// an http.Server.ConnContext.
func ConnContext(ctx context.Context, conn net.Conn) context.Context {
	if conn.LocalAddr().Network() == "unix" {
		return context.WithValue(ctx, trustedKey{}, true)
	}
	return ctx
}

// Trusted reports whether ConnContext marked the connection of this context.
func Trusted(ctx context.Context) bool {
	trusted, _ := ctx.Value(trustedKey{}).(bool)
	return trusted
}

// exchange is one request and what became of it. One goroutine owns it; body
// guards itself.
type exchange struct {
	http.ResponseWriter
	control *http.ResponseController
	request *http.Request
	conn    net.Conn   // of what is no HTTP any more; nil before
	id      string     // of the request
	pattern string     // of the route; "" for none
	status  int        // 0 until the header was written
	bytes   int64      // of the reply's body
	code    fault.Code // of the error that was sent
	gone    bool       // the caller went away before the reply
	body    *body
}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

func (x *exchange) WriteHeader(status int) {
	if x.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		x.status = status
	}
	x.ResponseWriter.WriteHeader(status)
}

func (x *exchange) Write(p []byte) (int, error) {
	if x.status == 0 {
		x.status = http.StatusOK
	}
	stall := writeStall + time.Duration(len(p)/minWriteRate)*time.Second
	_ = x.control.SetWriteDeadline(time.Now().Add(stall)) // not every writer has one (httptest)
	n, err := x.ResponseWriter.Write(p)
	x.bytes += int64(n)
	if err != nil {
		return n, fmt.Errorf("write reply: %w", err)
	}
	return n, nil
}

// Unwrap is for http.ResponseController.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// Hijack hands the connection over, and keeps it for deadlines.
func (x *exchange) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := x.control.Hijack()
	x.conn = conn
	return conn, buffered, err
}

// ServeHTTP gives the request its id, and logs its end, whatever happens.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	x := &exchange{ResponseWriter: w, control: http.NewResponseController(w), id: ident.New(ident.Request)}
	x.body = newBody(r, x.control)
	_ = x.control.SetWriteDeadline(time.Time{}) // of the request before
	w.Header().Set("Request-Id", x.id)
	r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
	r.Body = x.body
	x.request = r
	defer func() {
		x.body.finish()
		s.log(r, x, time.Since(began))
	}()
	defer s.recover(x, r)
	s.route(x, r)
}

func (s *server) logPanic(ctx context.Context, x *exchange, cause any) {
	s.Logger.LogAttrs(ctx, slog.LevelError, "request panicked",
		slog.String("request_id", x.id), slog.Any("cause", cause), slog.String("stack", string(debug.Stack())))
}

func (s *server) recover(x *exchange, r *http.Request) {
	cause := recover()
	if cause == nil {
		return
	}
	if err, ok := cause.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(cause)
	}
	s.logPanic(r.Context(), x, cause)
	x.code = fault.InternalError
	if x.status != 0 {
		panic(http.ErrAbortHandler)
	}
	writeFault(x, x, fault.From(errors.New("panic")))
}

// log writes the access log: no query, no body, no key, no path with an id.
func (s *server) log(r *http.Request, x *exchange, took time.Duration) {
	attrs := []slog.Attr{
		slog.String("request_id", x.id),
		slog.String("method", r.Method),
		slog.String("route", x.pattern),
		slog.Int("status", x.status),
		slog.Duration("duration", took),
		slog.Int64("bytes_in", x.body.read.Load()),
		slog.Int64("bytes_out", x.bytes),
	}
	if x.code != "" {
		attrs = append(attrs, slog.String("code", string(x.code)))
	}
	if x.gone {
		attrs = append(attrs, slog.Bool("caller_gone", true))
	}
	s.Logger.LogAttrs(r.Context(), slog.LevelInfo, "request", attrs...)
}
