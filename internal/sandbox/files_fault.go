package sandbox

import (
	"errors"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
)

// refusals is what the agent's refusals mean to the caller of one call, where
// that is something else than usual.
type refusals map[guestwire.Code]fault.Error

// usual is what they mean where a call says nothing else.
var usual = refusals{
	guestwire.FileNotFound:     {Code: fault.FileNotFound, Message: "no such file in the sandbox; list its directory to see what is there"},
	guestwire.NotAFile:         {Code: fault.ParameterInvalid, Param: "path", Message: "path names something that is no regular file; files/stat says what it is"},
	guestwire.BadDirectory:     {Code: fault.ParameterInvalid, Param: "path", Message: "path names something that is no directory; files/stat says what it is"},
	guestwire.PermissionDenied: {Code: fault.ParameterInvalid, Param: "path", Message: "the guest refuses this path; another one may do"},
	guestwire.BadRequest:       {Code: fault.ParameterInvalid, Param: "path", Message: "the guest refuses this path; another one may do"},
	guestwire.Exists:           {Code: fault.ResourceAlreadyExists, Param: "path", Message: "something else is at this path already; remove it, or choose another path"},
	guestwire.DiskFull:         {Code: fault.FullGuestDisk, Message: "the sandbox's disk is full; remove files, or create another sandbox"},
	guestwire.TooMuch:          {Code: fault.NodeAtCapacity, Message: "the sandbox works on as many file requests as it can at once; repeat after the seconds in Retry-After"},
	guestwire.TooDeep:          {Code: fault.ParameterInvalid, Param: "path", Message: "directories lie too deep in each other below path; name one that is further down first"},
	guestwire.Failed:           {Code: fault.GuestUnreachable, Message: "the guest failed to do it; try again, or create another sandbox"},
}

// fault turns what the agent's client said into what a caller may see.
func (r refusals) fault(s *Session, err error) error {
	var refusal *guestwire.Error
	switch {
	case errors.As(err, &refusal):
		for _, table := range []refusals{r, usual} {
			if known, ok := table[refusal.Code]; ok {
				if refusal.Code == guestwire.Failed {
					known.Cause = err // the others are told whole
				}
				return &known
			}
		}
	case errors.Is(err, guestwire.ErrProtocol):
		s.AgentFailed(err)
	case s.life.ctx.Err() != nil:
		return s.life.owner.gone()
	}
	return fault.Wrap(err, fault.GuestUnreachable, "the guest did not answer; try again, or create another sandbox")
}
