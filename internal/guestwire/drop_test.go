package guestwire

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
)

// stalled is a body that says something and then nothing more, until it is closed.
type stalled struct {
	says   io.Reader
	closed chan struct{}
}

func (s *stalled) Read(p []byte) (int, error) {
	if n, _ := s.says.Read(p); n > 0 {
		return n, nil
	}
	<-s.closed
	return 0, io.ErrClosedPipe
}

func (s *stalled) Close() error {
	close(s.closed)
	return nil
}

// TestALieIsNotWaitedFor: a reply that is refused is over, whatever the agent may
// still have to say.
func TestALieIsNotWaitedFor(t *testing.T) {
	for name, test := range map[string]struct {
		says string
		call func(*Client, context.Context) error
	}{
		"list": {"no entry\n", func(c *Client, ctx context.Context) error {
			_, _, err := c.List(ctx, List{Path: "/", Depth: 1, Limit: 1})
			return err
		}},
		"pull": {strings.Repeat("x", 64), func(c *Client, ctx context.Context) error {
			_, err := c.Pull(ctx, "a", Pull{}, into(nil))
			return err
		}},
		"remove": {strings.Repeat("x", MaxReplyBody+1), func(c *Client, ctx context.Context) error {
			_, err := c.Remove(ctx, "/x", true)
			return err
		}},
		"stat": {strings.Repeat("x", MaxReplyBody+1), func(c *Client, ctx context.Context) error {
			_, err := c.Stat(ctx, "/x")
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				body := &stalled{strings.NewReader(test.says), make(chan struct{})}
				client := NewClient(roundTripper(func(r *http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: 200, ContentLength: -1, Body: body, Request: r}, nil
				}))
				if err := test.call(client, t.Context()); !errors.Is(err, ErrProtocol) {
					t.Error(err)
				}
			})
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
