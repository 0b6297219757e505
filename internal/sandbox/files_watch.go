package sandbox

import (
	"context"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
)

// Watch hands each change below a directory to each, in order, and now and then a
// sign of life, which has no type; the first one says that the watch is in force.
// It returns when the context or the sandbox ends, the directory is gone, or each
// fails. While each works the guest keeps what it has to tell, within bounds.
func (f *Files) Watch(ctx context.Context, id, path string, recursive bool, each func(guestwire.Change) error) error {
	if err := checkPath("path", path); err != nil {
		return err
	}
	session, err := f.sandboxes.Use(ctx, id)
	if err != nil {
		return err
	}
	bound, guard := f.guard(ctx, session)
	defer guard.stop()
	var failed error
	err = session.Agent().Watch(bound, path, recursive, func(change guestwire.Change) error {
		guard.pause()
		failed = each(change)
		guard.moved()
		return failed
	})
	switch {
	case failed != nil:
		return failed
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err == nil:
		return fault.New(fault.FileNotFound, "what was watched is gone; watch what is there now")
	}
	return watchRefusals.fault(session, err)
}

var watchRefusals = refusals{
	guestwire.TooMuch: {
		Code: fault.NodeAtCapacity, Param: "path",
		Message: "the sandbox has as many watches, or directories under watch, as it can; end one, or watch less",
	},
}
