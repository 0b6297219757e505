package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// sshArgs are ssh's options for a machine. They leave nothing to the user's own configuration, agent or known hosts. Names
// are relative to the machine's directory, where ssh runs: a Unix socket's path is at most 107 bytes, and a home may be deep.
func sshArgs(name string, port int) []string {
	var args []string
	for _, o := range []string{
		"ControlPath=./ssh.sock", "IdentityFile=./id_ed25519", "IdentitiesOnly=yes", "IdentityAgent=none",
		"UserKnownHostsFile=./known_hosts", "GlobalKnownHostsFile=none", "StrictHostKeyChecking=yes", "HostKeyAlias=" + name,
		"UpdateHostKeys=no", "BatchMode=yes", "PreferredAuthentications=publickey", "ConnectTimeout=20", "LogLevel=ERROR",
		"ServerAliveInterval=30", "ServerAliveCountMax=10",
	} {
		args = append(args, "-o", o)
	}
	return append([]string{"-F", "none", "-p", fmt.Sprint(port)}, args...)
}

const sshTarget = "root@127.0.0.1"

// connect makes sure that a control master is there, so that each later command costs one round trip.
func (m *Machine) connect(ctx context.Context, port int) error {
	args := sshArgs(m.cfg.Name, port)
	check := exec.CommandContext(ctx, "ssh", append(args, "-O", "check", sshTarget)...)
	check.Dir = m.dir
	if check.Run() == nil {
		return nil
	}
	// The master goes on in the background and keeps its stderr: a file, since a pipe would never end.
	log, err := os.CreateTemp(m.dir, ".ssh-*")
	if err != nil {
		return fmt.Errorf("make log: %w", err)
	}
	defer func() { log.Close(); os.Remove(log.Name()) }()
	master := exec.CommandContext(ctx, "ssh", append(args, "-f", "-N", "-M", sshTarget)...)
	master.Dir, master.Stderr = m.dir, log
	if err := master.Run(); err != nil {
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("connect to %s: %w: %s", m.cfg.Name, err, bytes.TrimSpace(text))
	}
	return nil
}

// disconnect ends the control master, if there is one.
func (m *Machine) disconnect(ctx context.Context) {
	c := exec.CommandContext(ctx, "ssh", append(sshArgs(m.cfg.Name, 1), "-O", "exit", sshTarget)...)
	c.Dir = m.dir
	_ = c.Run() // there was none, or it went with the machine
	_ = os.Remove(m.path("ssh.sock"))
}

// Command is a command line that runs in the host as root, ready to be given its files and started. Words are quoted for the
// host's shell; none at all means a login shell. The machine must be running.
func (m *Machine) Command(ctx context.Context, tty bool, words ...string) (*exec.Cmd, error) {
	r, err := m.running()
	if err != nil {
		return nil, err
	}
	if err := m.connect(ctx, r.Settings.SSHPort); err != nil {
		return nil, err
	}
	args := sshArgs(m.cfg.Name, r.Settings.SSHPort)
	if tty {
		args = append(args, "-t")
	}
	args = append(args, sshTarget)
	if len(words) > 0 {
		args = append(args, "--", quote(words))
	}
	cmd := exec.CommandContext(ctx, "ssh", args...)
	cmd.Dir = m.dir
	return cmd, nil
}

// quote joins words so that a POSIX shell splits them again as they were.
func quote(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(out, " ")
}

// HostError is a command in the host that ended with an exit code other than 0.
type HostError struct {
	Command string
	Code    int
	Output  string // what it wrote to stderr, at most the last KiB
}

func (e *HostError) Error() string {
	return fmt.Sprintf("run %s in the host: exit code %d: %s", e.Command, e.Code, e.Output)
}

// Run runs a command in the host and returns what it printed. An exit code other than 0 is a *HostError.
func (m *Machine) Run(ctx context.Context, words ...string) ([]byte, error) {
	cmd, err := m.Command(ctx, false, words...)
	if err != nil {
		return nil, err
	}
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			text := bytes.TrimSpace(complaints.Bytes())
			return out.Bytes(), &HostError{words[0], e.ExitCode(), string(text[max(0, len(text)-1024):])}
		}
		return out.Bytes(), fmt.Errorf("run %s in the host: %w", words[0], err)
	}
	return out.Bytes(), nil
}

// Shell runs words in the host (a login shell when there are none) with the given files, and returns the exit code: any code
// is a result, an error means that the command may not have run. With tty the host gives it a terminal.
func (m *Machine) Shell(ctx context.Context, tty bool, stdin io.Reader, stdout, stderr io.Writer, words ...string) (int, error) {
	cmd, err := m.Command(ctx, tty, words...)
	if err != nil {
		return 0, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	err = cmd.Run()
	if e, ok := errors.AsType[*exec.ExitError](err); ok && e.ExitCode() >= 0 {
		if e.ExitCode() == 255 && !m.alive() { // ssh's own code for a connection that broke
			return 0, fmt.Errorf("run command in the host: %w", ErrGone)
		}
		return e.ExitCode(), nil
	}
	if err != nil {
		return 0, fmt.Errorf("run command in the host: %w", err)
	}
	return 0, nil
}
