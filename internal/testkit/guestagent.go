package testkit

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/microvmd/microvm/internal/guest"
	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/sandbox"
)

// GuestAgent runs the very agent of the guests, on this host, in a directory of
// its own below dir, as the current user: real programs, real files, no
// isolation. It stands in for a guest where no kernel is wanted.
func GuestAgent(dir string) AgentFactory {
	return func(plan sandbox.Plan) (http.RoundTripper, func(), error) {
		root, err := os.MkdirTemp(dir, "guest-")
		if err != nil {
			return nil, nil, err
		}
		// The socket's path has at most 107 bytes, so it gets a short name.
		listener, err := net.Listen("unix", filepath.Join(root, "a"))
		if err != nil {
			return nil, nil, err
		}
		agent, err := guest.New(guest.Config{Version: "fake", Root: filepath.Join(root, "root"), SameUser: true})
		if err != nil {
			_ = listener.Close()
			return nil, nil, err
		}
		if err := os.MkdirAll(filepath.Join(root, "root", plan.Image.Workdir), 0o755); err != nil {
			return nil, nil, err
		}
		done := make(chan struct{})
		go func() { defer close(done); _ = agent.Serve(listener) }()
		transport := &http.Transport{
			MaxResponseHeaderBytes: guestwire.MaxReplyHeader,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", listener.Addr().String())
			},
		}
		stop := func() {
			_ = agent.Close()
			<-done
			transport.CloseIdleConnections()
			_ = os.RemoveAll(root)
		}
		return transport, stop, nil
	}
}
