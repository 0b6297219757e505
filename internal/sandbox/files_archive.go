package sandbox

import (
	"context"
	"errors"
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
		guestwire.NotAFile:   notADirectory,
		guestwire.BadRequest: {Code: fault.BodyInvalid, Message: "the body is no tar archive of this format, is cut, or has too many members; check it and the parameter format"},
	}
	err = f.send(ctx, id, special, tar, func(ctx context.Context, agent *guestwire.Client, tar io.Reader) (err error) {
		unpacked, err = agent.WriteArchive(ctx, path, gzip, keepOwners, tar)
		return err
	})
	return unpacked, unsafeMember(err)
}

// unsafeMember names the member that the agent refused. Its name is the guest's
// word: bounded by its client, and escaped here.
func unsafeMember(err error) error {
	var refusal *guestwire.Error
	if !errors.As(err, &refusal) || refusal.Code != guestwire.UnsafeMember {
		return err
	}
	return fault.Wrap(err, fault.ParameterInvalid, "the archive's member %+q is not unpacked, as it leads out of the directory or is a device, FIFO or link to what is not in it; make the archive without it", refusal.Detail)
}
