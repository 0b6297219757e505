package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"
)

// patience bounds each thing that a server is asked to do.
const patience = 30 * time.Second

// superuser is the cluster's; tests act as it through Admin only.
const superuser = "postgres"

// Server is one PostgreSQL server.
type Server struct {
	bin     string // the release's programs
	dir     string // holds data/, the socket and the log
	lock    *os.File
	process *os.Process
	ended   chan struct{} // closed when the process is gone
}

func newServer() (*Server, error) {
	bin, err := release()
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin}
	if s.dir, s.lock, err = place(); err != nil {
		return nil, fmt.Errorf("make PostgreSQL's directory: %w", err)
	}
	if err := s.create(); err != nil {
		return nil, errors.Join(err, s.remove())
	}
	return s, nil
}

// release finds the newest PostgreSQL of Debian's packages, which lie at
// /usr/lib/postgresql/VERSION/bin.
func release() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "", errors.New("PostgreSQL is not installed: `make test-postgres` installs Debian's package, or: hack/postgres.sh")
	}
	version := func(path string) int {
		n, _ := strconv.Atoi(strings.Split(path, "/")[4])
		return n
	}
	return filepath.Dir(slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) })), nil
}

// create makes the cluster, starts it, and makes User.
func (s *Server) create() error {
	secret := filepath.Join(s.dir, "password")
	if err := os.WriteFile(secret, []byte(Password), 0o644); err != nil { // the folder is private
		return err
	}
	// Pages have checksums, so that damage is met as such. Nothing is synced: a
	// killed process leaves its writes to the kernel, and no power is cut here.
	initdb := exec.Command(filepath.Join(s.bin, "initdb"), "--pgdata", s.Data(), "--username", superuser, "--pwfile", secret,
		"--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--data-checksums", "--no-sync")
	if err := unprivileged(initdb); err != nil {
		return err
	}
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	if err := s.start(); err != nil {
		return err
	}
	return s.admin(fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", User, Password))
}

// unprivileged lets a command run as PostgreSQL's user: it refuses root.
func unprivileged(cmd *exec.Cmd) error {
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Getuid() != 0 {
		return nil
	}
	who, err := account()
	cmd.SysProcAttr.Credential = who
	return err
}

// account is the user that Debian's package makes.
func account() (*syscall.Credential, error) {
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(err, err2)
}

// start runs the server and waits until it takes connections. The processes of
// one that was killed hold its memory for another moment: then it is tried again.
func (s *Server) start() error {
	for began := time.Now(); ; {
		if err := s.spawn(); err != nil {
			return fmt.Errorf("start PostgreSQL: %w", err)
		}
		err := s.ready(began)
		if err == nil {
			return nil
		}
		if time.Since(began) > patience {
			return fmt.Errorf("start PostgreSQL: %w: %s", err, s.log())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// ready returns when the server takes connections, has ended, or took too long.
func (s *Server) ready(began time.Time) error {
	for {
		err := s.admin("SELECT 1")
		if err == nil {
			return nil
		}
		select {
		case <-s.ended:
			return errors.New("it ended")
		case <-time.After(20 * time.Millisecond):
		}
		if time.Since(began) > patience {
			return err
		}
	}
}

func (s *Server) spawn() error {
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(filepath.Join(s.bin, "postgres"), "-D", s.Data(), "-c", "listen_addresses=", "-c", "unix_socket_directories="+s.dir,
		"-c", "fsync=off", "-c", "shared_buffers=16MB", "-c", "max_wal_size=64MB", "-c", "min_wal_size=32MB", "-c", "autovacuum=off")
	cmd.Stdout, cmd.Stderr = log, log
	if err := unprivileged(cmd); err != nil {
		return err
	}
	started := make(chan error)
	ended := make(chan struct{})
	go func() {
		// The signal of the parent's death comes when the thread that started the
		// child ends (prctl(2)), so that thread waits for it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it may be killed, that is what it is for
		}
		close(ended)
	}()
	if err := <-started; err != nil {
		return err
	}
	s.process, s.ended = cmd.Process, ended
	return nil
}

func (s *Server) log() string {
	text, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(text[max(0, len(text)-2000):]))
}

// Kill ends the server and each of its processes by SIGKILL.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	pid := s.process.Pid
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.process.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, child := range strings.Fields(string(children)) {
		if n, err := strconv.Atoi(child); err == nil {
			_ = unix.Kill(n, unix.SIGKILL) // it may be gone
		}
	}
	<-s.ended
}

// Stop ends the server in order; sessions are cut.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
}

// gone says whether it was killed or stopped.
func (s *Server) gone() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// Restart starts a server that was killed or stopped, with what it had.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
}

func (s *Server) stop() error {
	if err := s.process.Signal(unix.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-s.ended:
		return nil
	case <-time.After(patience):
		_ = s.process.Kill()
		<-s.ended
		return errors.New("PostgreSQL did not stop and was killed")
	}
}

// remove ends the server and leaves nothing of it.
func (s *Server) remove() error {
	var err error
	if s.process != nil {
		err = s.stop()
	}
	return errors.Join(err, os.RemoveAll(s.dir), s.lock.Close())
}

// Admin runs statements as the cluster's superuser, each by itself.
func (s *Server) Admin(t testing.TB, statements ...string) {
	t.Helper()
	if err := s.admin(statements...); err != nil {
		t.Fatal(err)
	}
}

func (s *Server) admin(statements ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.url(superuser, "postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// Data is the cluster's directory; a stopped server's may be changed.
func (s *Server) Data() string { return filepath.Join(s.dir, "data") }

// Own gives a directory to the server's user, as a tablespace must be.
func (s *Server) Own(t testing.TB, dir string) {
	t.Helper()
	if os.Getuid() != 0 {
		return
	}
	who, err := account()
	if err == nil {
		err = os.Chown(dir, int(who.Uid), int(who.Gid))
	}
	if err != nil {
		t.Fatal(err)
	}
}
