package firecracker

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
)

const (
	agentConns = 448 // connections to one guest's agent at once; Firecracker's bound is 1023
	agentIdle  = 4   // of which are kept when idle
	agentKeep  = 30 * time.Second
)

// agent is the way to one guest's agent.
type agent struct {
	client    *guestwire.Client
	transport *http.Transport
	cancel    context.CancelFunc // ends dials that are under way
}

func (a *agent) close() {
	a.cancel()
	a.transport.CloseIdleConnections()
}

// Client returns a client for a guest's agent. It needs nothing but the jail's
// directory, so it reaches a VM that an earlier daemon started as well. Until
// Release every call returns the same client.
func (v *VMM) Client(host string) *guestwire.Client {
	v.mu.Lock()
	defer v.mu.Unlock()
	if a := v.agents[host]; a != nil {
		return a.client
	}
	// The transport detaches a dial from its request, so it gets an end of its own.
	life, cancel := context.WithCancel(context.Background())
	guest := newVsock(func(ctx context.Context) (net.Conn, error) { return v.dialJail(ctx, host, vsockName) }, guestwire.AgentPort)
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ctx, stop := context.WithTimeout(ctx, vsockWait)
			defer stop()
			defer context.AfterFunc(life, stop)()
			v.noteCall(host)
			return guest.connect(ctx)
		},
		MaxConnsPerHost:        agentConns,
		MaxIdleConnsPerHost:    agentIdle,
		IdleConnTimeout:        agentKeep,
		MaxResponseHeaderBytes: guestwire.MaxReplyHeader,
		DisableCompression:     true,
	}
	v.agents[host] = &agent{client: guestwire.NewClient(noUpgrade{transport}), transport: transport, cancel: cancel}
	return v.agents[host].client
}

// noteCall remembers that the agent is no longer as its boot left it.
func (v *VMM) noteCall(host string) {
	if i := v.instance(host); i != nil {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.called = true
	}
}

// Release closes the client's idle connections and forgets it. Calls that are
// under way end with the VM or with their contexts.
func (v *VMM) Release(host string) {
	v.mu.Lock()
	a := v.agents[host]
	delete(v.agents, host)
	v.mu.Unlock()
	if a != nil {
		a.close()
	}
}

// api makes a client for the VMM's API in a jail.
func (v *VMM) api(host string) *api {
	return newAPI(func(ctx context.Context) (net.Conn, error) { return v.dialJail(ctx, host, apiName) })
}

// dialJail connects to a socket in a jail's root. It opens the root anew: a
// transport may dial after the call that wanted the connection has returned.
func (v *VMM) dialJail(ctx context.Context, host, name string) (net.Conn, error) {
	root, err := v.openRoot(host)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	return dialSocket(ctx, int(root.Fd()), name)
}
