package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
)

// ReadArchive packs a directory or a file into a tar archive, with gzip a
// compressed one, behind the member after unless that is "". A body that fails
// is no whole archive.
func (f *Files) ReadArchive(ctx context.Context, id, path string, gzip bool, after string) (io.ReadCloser, error) {
	if err := checkPath("path", path); err != nil {
		return nil, err
	}
	special := refusals{guestwire.NotAFile: {Code: fault.ParameterInvalid, Param: "path", Message: "path names something that is neither a directory nor a regular file; files/stat says what it is"}}
	session, err := f.sandboxes.Use(ctx, id)
	if err != nil {
		return nil, err
	}
	after, err = below(session.workdir(), path, after)
	session.Release()
	if err != nil {
		return nil, err
	}
	return f.receive(ctx, id, special, func(ctx context.Context, agent *guestwire.Client) (io.ReadCloser, error) {
		return agent.ReadArchive(ctx, path, gzip, after)
	})
}

// WriteArchive unpacks a tar archive into a directory. What was unpacked before
// a failure stays.
func (f *Files) WriteArchive(ctx context.Context, id, path string, gzip, keepOwners bool, tar io.Reader) (unpacked guestwire.Unpacked, err error) {
	if err := checkPath("path", path); err != nil {
		return unpacked, err
	}
	special := refusals{
		guestwire.BadRequest: {Code: fault.BodyInvalid, Message: "the body is no tar archive of this format, or is cut; check it and the parameter format"},
		guestwire.TooMuch: {Code: fault.NodeAtCapacity, Message: fmt.Sprintf(
			"the sandbox works on as many file requests as it can at once, or the archive has over %d members or too many that wait for their end; repeat after the seconds in Retry-After, or send a smaller one",
			guestwire.MaxMembers)},
	}
	err = f.send(ctx, id, special, tar, func(ctx context.Context, agent *guestwire.Client, tar io.Reader) (err error) {
		unpacked, err = agent.WriteArchive(ctx, path, gzip, keepOwners, tar)
		return err
	})
	return unpacked, memberFault(err)
}

// memberFault names the member that the agent refused. Its name is the guest's
// word: bounded by its client, and escaped here.
func memberFault(err error) error {
	var refusal *guestwire.Error
	if !errors.As(err, &refusal) {
		return err
	}
	switch refusal.Code {
	case guestwire.UnsafeMember:
		return fault.Wrap(err, fault.ParameterInvalid, "the archive's member %+q is not unpacked, as it leads out of the directory or is a device, FIFO or link to what is not in it; make the archive without it", refusal.Detail)
	case guestwire.NotAFile:
		return fault.Param("path", "what must be a directory for %+q is none; remove it, or unpack elsewhere", refusal.Detail)
	case guestwire.Exists:
		return &fault.Error{Code: fault.ResourceAlreadyExists, Param: "path", Message: fmt.Sprintf("something else is in the way of the archive's member %+q; remove it, or unpack elsewhere", refusal.Detail)}
	case guestwire.Conflict:
		return &fault.Error{Code: fault.FileConflict, Param: "path", Message: fmt.Sprintf("what is at the place of the archive's member %+q changes meanwhile, or is a link that leads nowhere; remove it, or unpack elsewhere", refusal.Detail)}
	}
	return err
}
