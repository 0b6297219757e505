package testkit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/microvmd/microvm/internal/guestwire"
)

type agents View

func (a *agents) Hello(ctx context.Context, host string) (hello guestwire.Hello, err error) {
	v := (*View)(a)
	var j *fakeJail
	err = v.act(ctx, operation, "agent.hello", func() error {
		v.host.mu.Lock()
		defer v.host.mu.Unlock()
		j = v.host.jails[host]
		switch {
		case j == nil || j.maker != v || j.greeted:
			return fmt.Errorf("wait for hello: %q was not prepared by this daemon, or its hello was taken", host)
		case j.template != nil:
			return fmt.Errorf("wait for hello: %q is restored from a template and says none", host)
		}
		j.greeted = true
		return nil
	}, nil)
	if err != nil {
		return guestwire.Hello{}, err
	}
	if err := v.wait(ctx, j.changed); err != nil {
		return guestwire.Hello{}, fmt.Errorf("wait for hello: %w", err)
	}
	v.host.mu.Lock()
	defer v.host.mu.Unlock()
	if j.dead {
		return guestwire.Hello{}, errors.New("wait for hello: the VMM ended first")
	}
	return guestwire.Hello{Protocol: guestwire.Protocol, Version: "fake"}, nil
}

func (a *agents) Client(host string) *guestwire.Client {
	v := (*View)(a)
	return guestwire.NewClient(roundTripper(func(r *http.Request) (reply *http.Response, err error) {
		ctx, cancel := context.WithCancelCause(r.Context())
		stop := context.AfterFunc(v.life, func() { cancel(ErrKilled) }) //nolint:contextcheck // the daemon's end is another than the call's
		over := func() { stop(); cancel(nil) }
		err = v.act(ctx, call, callName(r), func() error {
			reply, err = v.send(host, r.WithContext(ctx)) //nolint:bodyclose // its reader closes it
			return err
		}, nil)
		if err != nil {
			if reply != nil { // an answer that a killed daemon never saw
				_ = reply.Body.Close()
			}
			over()
			return nil, err
		}
		reply.Body = &boundBody{ReadCloser: reply.Body, over: over}
		return reply, nil
	}))
}

// send passes a request to the agent of a microVM. One that is paused takes it
// and says nothing.
func (v *View) send(host string, r *http.Request) (*http.Response, error) {
	v.host.mu.Lock()
	j := v.host.jails[host]
	if j == nil || j.transport == nil {
		v.host.mu.Unlock()
		return nil, fmt.Errorf("dial agent: no microVM %s", host)
	}
	j.talked = true
	transport, paused := j.transport, j.paused
	v.host.mu.Unlock()
	if paused {
		return nil, v.wait(r.Context(), nil)
	}
	return transport.RoundTrip(r)
}

// callName is "agent." and the first word of a route: of /v1/files?path=x,
// agent.files.
func callName(r *http.Request) string {
	_, route, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	word, _, _ := strings.Cut(route, "/")
	return "agent." + word
}

// boundBody ends the watch over a call when its reply was read.
type boundBody struct {
	io.ReadCloser
	over func()
}

func (b *boundBody) Close() error {
	defer b.over()
	return b.ReadCloser.Close()
}

func (a *agents) Release(string) {}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
