package httpapi

import (
	"context"
	"errors"
	"net/http"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/httpapi/gen"
)

// WatchFiles is GET /v1/sandboxes/{sandbox}/files/watch.
func (s *server) WatchFiles(ctx context.Context, r gen.WatchFilesRequestObject) (gen.WatchFilesResponseObject, error) {
	if err := checkFile(r.Sandbox, "path", r.Params.Path); err != nil {
		return nil, err
	}
	return s.watch(ctx, func(bound context.Context, w http.ResponseWriter) error {
		x := exchangeOf(ctx)
		err := s.Files.Watch(bound, r.Sandbox, r.Params.Path, value(r.Params.Recursive), func(change guestwire.Change) error {
			if x.status == 0 {
				beginEvents(w)
				return x.send(nil) // the watch is in force
			}
			return x.send(encodeChange(change))
		})
		return s.endWatch(bound, x, err)
	}), nil
}

// VisitWatchFilesResponse writes the reply.
func (l longReply) VisitWatchFilesResponse(w http.ResponseWriter) error { return l(w) }

// endWatch tells the caller of a watch why it is over.
func (s *server) endWatch(ctx context.Context, x *exchange, err error) error {
	stopping := errors.Is(context.Cause(ctx), errStopping)
	if errors.Is(err, errNotTaken) || ctx.Err() != nil && !stopping {
		x.gone = true
		return err
	}
	f := fault.From(err)
	if stopping || f.Code == fault.ShuttingDown {
		f = fault.New(fault.ShuttingDown, "the daemon is stopping; watch again and then list")
	}
	if x.status == 0 {
		return f
	}
	s.logCause(ctx, x, f)
	return x.send(encodeEvent("", "error", gen.FileWatchError{Code: wireCode(f), Message: f.Message}))
}

// encodeChange is a change, or a sign of life, on the wire.
func encodeChange(c guestwire.Change) []byte {
	switch c.Type {
	case guestwire.NoChange:
		return []byte(": still here\n\n")
	case guestwire.ChangeOverflow:
		return encodeEvent("", "overflow", gen.FileOverflow{Message: "changes were missed; list the directory to see what is there now"})
	}
	wire := gen.FileChange{Directory: c.IsDir}
	wire.Path, wire.PathBase64 = shown(c.Path)
	if c.Type == guestwire.ChangeMoved {
		from, exact := shown(c.From)
		wire.From, wire.FromBase64 = &from, exact
	}
	return encodeEvent("", string(c.Type), wire)
}
