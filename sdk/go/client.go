package microvm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// Version is the version of this client, as it is sent in User-Agent.
const Version = "0.1.0"

// Client calls one node. It is safe for use by several goroutines at once, and
// is never closed: idle connections end by themselves.
type Client struct {
	Sandboxes  *SandboxService   // create, retrieve, list and delete sandboxes
	Executions *ExecutionService // start programs in a sandbox and learn how they ended
	Files      *FileService      // files of a running sandbox
	Images     *ImageService     // what a sandbox can start from
	Tickets    *TicketService    // keys for one request of a browser

	// Set at construction.
	base    string // scheme and host, without a slash at the end
	key     string
	retries int // repeats of one request beyond the first try
	http    *http.Client
	invalid error // why no request can be made

	sleep   func(context.Context, time.Duration) error // replaced in tests
	now     func() time.Time
	silence time.Duration // that ends a stream's connection
}

// Option sets one thing of a new Client.
type Option func(*options)

type options struct {
	url, key, socket string
	http             *http.Client
	retries          int
}

// WithURL sets the node's address, such as "http://127.0.0.1:7080"; without it
// MICROVM_URL is used.
func WithURL(address string) Option { return func(o *options) { o.url = address } }

// WithAPIKey sets the key; without it MICROVM_API_KEY is used.
func WithAPIKey(key string) Option { return func(o *options) { o.key = key } }

// WithSocket makes the client call the daemon on its own machine by the path of
// its Unix socket, which needs no key. It wins over WithURL and MICROVM_URL, and
// MICROVM_API_KEY is then not sent.
func WithSocket(path string) Option { return func(o *options) { o.socket = path } }

// WithHTTPClient makes the client use a copy of h, for instance for a proxy or
// other certificates. With WithSocket its transport is not used. A Timeout in
// it also ends waits and transfers. Its transport should have an
// ExpectContinueTimeout, as http.DefaultTransport does: without one, the reason
// of a refused upload can be lost in a connection that breaks under it.
func WithHTTPClient(h *http.Client) Option { return func(o *options) { o.http = h } }

// WithMaxRetries sets how often one request is repeated where that is safe; 0
// is never, the default is 2. Waiting for an execution has its own bound.
func WithMaxRetries(n int) Option { return func(o *options) { o.retries = max(n, 0) } }

// New makes a client. It makes no connection; what is wrong with the options is
// the error of every call.
func New(opts ...Option) *Client {
	o := options{retries: 2}
	for _, set := range opts {
		set(&o)
	}
	if o.socket == "" {
		if o.url == "" {
			o.url = os.Getenv("MICROVM_URL")
		}
		if o.key == "" {
			o.key = os.Getenv("MICROVM_API_KEY")
		}
	}
	c := &Client{retries: o.retries, key: o.key, sleep: sleep, now: time.Now, silence: silenceLimit}
	c.base, c.invalid = baseURL(o)
	c.http = httpClient(o)
	c.Sandboxes = &SandboxService{c}
	c.Executions = &ExecutionService{c}
	c.Files = &FileService{c}
	c.Images = &ImageService{c}
	c.Tickets = &TicketService{c}
	return c
}

// Health asks whether the daemon can serve requests, and for its version. It
// needs no key.
func (c *Client) Health(ctx context.Context) (*Health, error) {
	out := new(Health)
	if err := c.call(ctx, request{verb: "get health", method: http.MethodGet, path: "/v1/health"}, out); err != nil {
		return nil, err
	}
	return out, nil
}

// Run starts a program in a sandbox and waits until it has ended: shorthand for
// Executions.Run without options.
func (c *Client) Run(ctx context.Context, sandbox, cmd string, args ...string) (*Execution, error) {
	return c.Executions.Run(ctx, sandbox, ExecutionCreate{Cmd: cmd, Args: args})
}

// Connection returns the node's address (without a slash at its end), the header
// that every request needs, which holds the key, and the HTTP client, for what
// this package does not speak itself: the WebSocket of a terminal. Its refusals
// are read by [ReadError].
func (c *Client) Connection() (base string, header http.Header, h *http.Client, err error) {
	return c.base, c.header(), c.http, c.invalid
}

func (c *Client) header() http.Header {
	header := http.Header{"User-Agent": {"microvm-go/" + Version}}
	if c.key != "" {
		header.Set("Authorization", "Bearer "+c.key)
	}
	return header
}

func baseURL(o options) (string, error) {
	if strings.ContainsAny(o.key, "\r\n\x00") {
		return "", errors.New("make client: the API key holds a line break; check MICROVM_API_KEY")
	}
	if o.socket != "" {
		return "http://microvm", nil
	}
	if o.url == "" {
		return "", errors.New("make client: no address; set MICROVM_URL, or use WithURL or WithSocket")
	}
	u, err := url.Parse(o.url)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return "", fmt.Errorf("make client: %q is no address of a node; it must look like http://127.0.0.1:7080", o.url)
	}
	// A base that already ends in /v1 is what people copy from documentation.
	return strings.TrimSuffix(strings.TrimRight(u.String(), "/"), "/v1"), nil
}

func httpClient(o options) *http.Client {
	h := new(http.Client)
	if o.http != nil {
		*h = *o.http
	}
	// A node never redirects; following one would send the key elsewhere.
	h.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if o.socket != "" {
		h.Transport = &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", o.socket)
			},
			ExpectContinueTimeout: time.Second,
			MaxIdleConnsPerHost:   16,
			IdleConnTimeout:       90 * time.Second,
		}
	}
	return h
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
