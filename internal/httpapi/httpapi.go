// Package httpapi serves the HTTP API that api/openapi.yaml describes. It owns
// keys, the checks of a request, the wire form of replies and errors, and the
// map from fault.Kind to a status. It knows nothing of microVMs or SQL: what it
// serves reaches it through the small interfaces below.
//
// The way of a request: request id and access log (serve.go), route and key
// (route.go), query and body against the specification (request.go,
// validate.go), the generated decoder (gen), a handler (sandboxes.go,
// executions.go, control.go, files_*.go, node.go, ticket.go), and an error's
// envelope (errors.go). Streams (stream.go), terminals (terminal.go) and watches
// of files (files_watch.go) have no end of their own; the server ends them when
// it stops (watch.go).
package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/httpapi/gen"
	"github.com/microvmd/microvm/internal/image"
	"github.com/microvmd/microvm/internal/sandbox"
)

// Sandboxes is what the API does with sandboxes.
type Sandboxes interface {
	// Create makes a sandbox and returns it running.
	Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error)
	Get(ctx context.Context, id string) (sandbox.Sandbox, error)
	List(ctx context.Context, q sandbox.Query) (sandbox.Page, error)
	// Delete ends a sandbox and returns it stopped.
	Delete(ctx context.Context, id string) (sandbox.Sandbox, error)
	// Extend moves the end of a running sandbox's TTL to ttl from now, unless
	// it is later already.
	Extend(ctx context.Context, id string, ttl time.Duration) (sandbox.Sandbox, error)
	// Touch makes the idle time of a running sandbox begin anew.
	Touch(ctx context.Context, id string) (sandbox.Sandbox, error)
}

// Executions is what the API does with executions.
type Executions interface {
	// Start returns an execution that runs, or one that failed with a reason.
	Start(ctx context.Context, sandboxID string, spec execution.Spec) (execution.Execution, error)
	// Wait returns when the execution has ended or d, which may be 0, is over.
	Wait(ctx context.Context, sandboxID, id string, d time.Duration) (execution.Execution, error)
	List(ctx context.Context, q execution.Query) (execution.Page, error)
	// Output is what is kept of the output of an execution that was found.
	Output(e execution.Execution) (execution.Output, error)
	// Cancel ends a running execution, and returns it ended or, when that takes
	// long, running with the reason for which it is being ended.
	Cancel(ctx context.Context, sandboxID, id string, how execution.Cancel) (execution.Execution, error)
}

// Images is what the API does with images.
type Images interface {
	// Images lists those that this node can boot, by id.
	Images(ctx context.Context) ([]image.Image, error)
	// Import makes one of a tree, a tar that may be compressed with gzip.
	Import(ctx context.Context, spec image.Spec, tree io.Reader) (image.Brought, error)
	// Remove removes an imported one that nothing uses, and returns it.
	Remove(ctx context.Context, id string) (image.Image, error)
}

// Keys checks the keys that callers send.
type Keys interface {
	// Verify returns nil for a key that may be used, a fault.TokenInvalid for
	// one that may not, and another error when it could not find out.
	Verify(ctx context.Context, token string) error
}

// DefaultMaxBodyBytes is the bound on a JSON body unless Config sets another.
const DefaultMaxBodyBytes = 8 << 20

// Config is what New needs. All fields but MaxBodyBytes and Logger are required.
type Config struct {
	Sandboxes  Sandboxes
	Executions Executions
	Attached   Attached
	Files      Files
	Images     Images
	Keys       Keys
	Version    string       // of the daemon
	Logger     *slog.Logger // default: nothing is logged

	// MaxBodyBytes bounds a JSON body, 1 KiB..1 GiB; default DefaultMaxBodyBytes.
	// A body streamed into a file has no bound here.
	MaxBodyBytes int64
}

func (c *Config) fill() error {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.MaxBodyBytes == 0 {
		c.MaxBodyBytes = DefaultMaxBodyBytes
	}
	var errs []error
	if c.MaxBodyBytes < 1<<10 || c.MaxBodyBytes > 1<<30 {
		errs = append(errs, fmt.Errorf("body limit of %d bytes: must be 1 KiB to 1 GiB", c.MaxBodyBytes))
	}
	for _, part := range []struct {
		name    string
		missing bool
	}{
		{"sandboxes", c.Sandboxes == nil},
		{"executions", c.Executions == nil},
		{"attached executions", c.Attached == nil},
		{"files", c.Files == nil},
		{"images", c.Images == nil},
		{"keys", c.Keys == nil},
		{"version", c.Version == ""},
	} {
		if part.missing {
			errs = append(errs, fmt.Errorf("%s: missing", part.name))
		}
	}
	return errors.Join(errs...)
}

// server holds what handlers need. All of it is set at construction; the last
// three guard themselves.
type server struct {
	Config
	mux    *http.ServeMux
	routes map[string]route // by pattern of mux
	check  func(http.Handler) http.Handler

	tickets tickets
	inputs  inputs
	watches watches
}

var _ gen.StrictServerInterface = (*server)(nil)

// New makes the API's handler. It serves keyless only what the specification
// says, and connections that ConnContext marked as trusted.
func New(cfg Config) (http.Handler, error) {
	if err := cfg.fill(); err != nil {
		return nil, fmt.Errorf("make API: %w", err)
	}
	s := &server{Config: cfg, mux: http.NewServeMux(), inputs: inputs{attached: cfg.Attached}}
	if err := s.loadSpecification(); err != nil {
		return nil, fmt.Errorf("make API: %w", err)
	}
	strict := gen.NewStrictHandlerWithOptions(s, nil, gen.StrictHTTPServerOptions{
		RequestErrorHandlerFunc:  s.failDecode,
		ResponseErrorHandlerFunc: s.fail,
	})
	gen.HandlerWithOptions(strict, gen.StdHTTPServerOptions{
		BaseRouter:       s.mux,
		ErrorHandlerFunc: s.failDecode,
	})
	return s, nil
}
