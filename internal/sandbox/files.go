package sandbox

import (
	"context"
	"io"
	"path"
	"strings"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
)

// Files does what is done with files of running sandboxes, through their agents.
// It holds no file in memory and opens no path on the host. A path is absolute
// or relative to the image's working directory; what is wrong with a request is
// said before its sandbox hears of it.
//
// A call of which the guest says nothing for StepTimeout fails: how long the
// caller takes to send and to read does not count.
type Files struct {
	sandboxes *Manager
}

// NewFiles makes a Files over a manager.
func NewFiles(m *Manager) *Files { return &Files{sandboxes: m} }

// call makes one call to the agent of a running sandbox.
func (f *Files) call(ctx context.Context, id string, special refusals, do func(context.Context, *guestwire.Client) error) error {
	session, err := f.sandboxes.Use(ctx, id)
	if err != nil {
		return err
	}
	ctx, guard := f.guard(ctx, session)
	defer guard.stop()
	if err := do(ctx, session.Agent()); err != nil {
		return special.fault(session, err)
	}
	return nil
}

// send makes a call that passes content on to the guest.
func (f *Files) send(ctx context.Context, id string, special refusals, content io.Reader, do func(context.Context, *guestwire.Client, io.Reader) error) error {
	session, err := f.sandboxes.Use(ctx, id)
	if err != nil {
		return err
	}
	ctx, guard := f.guard(ctx, session)
	defer guard.stop()
	source := &guardedSource{from: content, guard: guard}
	err = do(ctx, session.Agent(), source)
	if failed := source.failed.Load(); failed != nil {
		return *failed // the caller's side broke, not the guest's
	}
	if err != nil {
		return special.fault(session, err)
	}
	return nil
}

// receive makes a call whose reply is passed on. Closing it ends the call.
func (f *Files) receive(ctx context.Context, id string, special refusals, do func(context.Context, *guestwire.Client) (io.ReadCloser, error)) (io.ReadCloser, error) {
	session, err := f.sandboxes.Use(ctx, id)
	if err != nil {
		return nil, err
	}
	ctx, guard := f.guard(ctx, session)
	content, err := do(ctx, session.Agent())
	if err != nil {
		guard.stop()
		return nil, special.fault(session, err)
	}
	guard.pause()
	return &guardedBody{body: content, guard: guard, session: session}, nil
}

// checkPath refuses what is no path; name is that of its parameter.
func checkPath(name, text string) error {
	if text == "" {
		return &fault.Error{Code: fault.ParameterMissing, Param: name, Message: name + " is missing; it must be absolute, or relative to the working directory"}
	}
	if len(text) > guestwire.MaxPath || strings.ContainsRune(text, 0) {
		return fault.Param(name, "%s must have at most %d bytes and hold no NUL", name, guestwire.MaxPath)
	}
	return nil
}

// checkMode refuses what is more than permission bits.
func checkMode(name string, mode uint32) error {
	if mode > 0o777 {
		return fault.Param(name, "%s must be octal permission bits, 0000 to 0777", name)
	}
	return nil
}

// absolute is where a path leads by its text.
func absolute(workdir, text string) string {
	if path.IsAbs(text) {
		return path.Clean(text)
	}
	return path.Join("/", workdir, text)
}

// workdir is what relative paths are relative to.
func (s *Session) workdir() string { return s.life.owner.plan.Image.Workdir }
