package sandbox

import (
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/secret"
)

// sealed is a caller's environment as a Sandbox has it. The plain one is kept
// nowhere: not in the guest, which gets it with each execution, and so in no
// template either.
func (m *Manager) sealed(env secret.Env, id string) (string, error) {
	if len(env) == 0 {
		return "", nil
	}
	return m.cfg.Secrets.Seal(env, id)
}

// opened is the environment of a sandbox.
func (m *Manager) opened(sb Sandbox) (secret.Env, error) {
	if sb.Env == "" {
		return nil, nil
	}
	env, err := m.cfg.Secrets.Open(sb.Env, sb.ID)
	if err != nil {
		return nil, fault.Wrap(err, fault.InternalError,
			"the env of sandbox %s cannot be opened: %s in the daemon's state directory is not the key that sealed it; put that file back and restart the daemon, or create another sandbox",
			sb.ID, secret.KeyFile)
	}
	return env, nil
}

// Env is the environment for what runs in the sandbox; nil is none. It is opened
// anew at each call, and the caller keeps it no longer than it has to. It is a
// fault.InternalError when the key that sealed it is lost: the sandbox lives on.
func (s *Session) Env() (secret.Env, error) { return s.life.owner.m.opened(s.life.sandbox) }
