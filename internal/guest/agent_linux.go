package guest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// Bounds of one agent.
const (
	maxExecutions = 256 // that are kept at once, running and ended
	maxConns      = 512 // that are served at once; one more is closed
	maxFileWork   = 32  // file requests at once: a hanging file system of the guest takes no more threads

	defaultKeepTotal = 16 << 20
)

// Config says where an agent works. The zero value is not usable: see New.
type Config struct {
	// Version is said in the hello.
	Version string

	// Root is the directory under which the paths of files, working
	// directories and /etc/passwd are taken; "" is "/". Paths of programs are
	// not taken under it, nor are symbolic links held inside: it is for tests
	// and for a fake microVM. A worker changes its root instead.
	Root string

	// SameUser runs programs as the agent's own user. The configured default
	// user and root are accepted, any other name is user_not_found, and files
	// are not given away.
	SameUser bool

	// Cgroup is an existing cgroup v2 directory in which the agent may make
	// one for each execution; "" does without: then what leaves its session
	// outlives a kill, and oom_killed is never true.
	Cgroup string

	// KeepTotal bounds the bytes of output that all executions keep together
	// beyond 4 KiB a stream; 0 is 16 MiB.
	KeepTotal int64

	// Apply gives the guest its identity; nil does nothing. It is called once
	// for each generation, never twice at a time. An *guestwire.Error of it
	// goes to the host as it is.
	Apply func(guestwire.Configure) error
}

// Agent serves the protocol. It is safe for concurrent use.
type Agent struct {
	conf     Config          // set at construction
	null     int             // set at construction: /dev/null, stdin of programs
	oomScore *os.File        // set before it serves: oom_score_adj of the agent, or nil
	tree     *tree           // set at construction
	budget   budget          // has its own lock
	files    chan struct{}   // set at construction: a place for each file request
	watches  chan struct{}   // set at construction: a place for each watch
	watched  atomic.Int64    // directories that all watches look at
	fill     fillFunc        // set at construction
	signs    time.Duration   // set at construction: between two signs of life of a late reply
	quiet    time.Duration   // set at construction: after which a watch gives one
	life     context.Context //nolint:containedctx // ends when the agent is closed
	end      context.CancelFunc
	work     sync.WaitGroup // connections and followers of programs

	applying sync.Mutex // held while Config.Apply runs
	forking  sync.Mutex // held while a program is started

	mu         sync.Mutex
	configure  *guestwire.Configure      // guarded by mu: in force
	executions map[string]*execution     // guarded by mu
	outputs    map[*os.File]struct{}     // guarded by mu: closed by Close
	conns      map[net.Conn]struct{}     // guarded by mu
	listeners  map[net.Listener]struct{} // guarded by mu
	closed     bool                      // guarded by mu
}

// New makes an agent. Close ends it.
func New(conf Config) (*Agent, error) {
	null, err := openAt(unix.AT_FDCWD, os.DevNull, unix.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("make agent: %w", err)
	}
	tree, err := openTree(conf.Cgroup)
	if err != nil {
		_ = unix.Close(null)
		return nil, fmt.Errorf("make agent: %w", err)
	}
	life, end := context.WithCancel(context.Background())
	return &Agent{
		conf: conf, null: null, tree: tree, life: life, end: end, fill: fill,
		signs:      guestwire.SignSeconds * time.Second,
		quiet:      guestwire.WatchSeconds * time.Second,
		budget:     budget{free: cmp.Or(conf.KeepTotal, defaultKeepTotal)},
		files:      make(chan struct{}, maxFileWork),
		watches:    make(chan struct{}, guestwire.MaxWatches),
		executions: make(map[string]*execution),
		outputs:    make(map[*os.File]struct{}),
		conns:      make(map[net.Conn]struct{}),
		listeners:  make(map[net.Listener]struct{}),
	}, nil
}

// Serve answers on every connection that l accepts until l fails or the agent
// is closed; then the error is net.ErrClosed. It closes l.
func (a *Agent) Serve(l net.Listener) error {
	defer func() { _ = l.Close() }()
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return net.ErrClosed
	}
	a.listeners[l] = struct{}{}
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.listeners, l)
	}()
	for {
		conn, err := l.Accept()
		if err != nil {
			if a.life.Err() != nil {
				err = net.ErrClosed
			}
			return fmt.Errorf("serve: %w", err)
		}
		if !a.admit(conn) {
			_ = conn.Close()
		}
	}
}

// admit starts to serve a connection, if there is room.
func (a *Agent) admit(conn net.Conn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || len(a.conns) >= maxConns {
		return false
	}
	a.conns[conn] = struct{}{}
	a.work.Go(func() {
		a.serve(conn)
		_ = conn.Close()
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.conns, conn)
	})
	return true
}

// Close stops to serve, kills what runs and what it left behind, as far as it
// can be found, and waits until all is over.
func (a *Agent) Close() error {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		a.work.Wait()
		return nil
	}
	a.closed = true
	a.end()
	for l := range a.listeners {
		_ = l.Close()
	}
	for conn := range a.conns {
		_ = conn.Close()
	}
	all := make([]*execution, 0, len(a.executions))
	for _, e := range a.executions {
		all = append(all, e)
	}
	a.mu.Unlock()
	var errs []error
	for _, e := range all {
		<-e.started
		if e.refusal == nil {
			errs = append(errs, e.signal("SIGKILL"))
			<-e.ended
		}
	}
	a.mu.Lock()
	for output := range a.outputs {
		_ = output.Close()
	}
	a.mu.Unlock()
	a.work.Wait()
	for _, e := range all {
		e.group.removeSoon(context.Background())
	}
	a.tree.close()
	return errors.Join(append(errs, unix.Close(a.null))...)
}

// follow notes outputs whose other end may outlive the program.
func (a *Agent) follow(outputs []*os.File) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, output := range outputs {
		a.outputs[output] = struct{}{}
	}
}

func (a *Agent) unfollow(output *os.File) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.outputs, output)
	_ = output.Close()
}

// applyConfigure puts a configuration in force unless its generation, or a
// later one, is already.
func (a *Agent) applyConfigure(conf guestwire.Configure) (guestwire.Configured, error) {
	if err := checkConfigure(conf); err != nil {
		return guestwire.Configured{}, err
	}
	a.applying.Lock()
	defer a.applying.Unlock()
	if now, err := a.configuration(); err == nil && now.Generation >= conf.Generation {
		return guestwire.Configured{Generation: now.Generation}, nil
	}
	if a.conf.Apply != nil {
		if err := a.conf.Apply(conf); err != nil {
			return guestwire.Configured{}, err
		}
	}
	who, err := a.lookup(conf.User, conf.User)
	if err == nil {
		err = makeDirectory(a.under(conf.Workdir), who, nil)
	}
	if err != nil {
		return guestwire.Configured{}, err
	}
	conf.Entropy = nil // spent
	a.mu.Lock()
	defer a.mu.Unlock()
	a.configure = &conf
	return guestwire.Configured{Generation: conf.Generation}, nil
}

// configuration is what is in force, or not_configured.
func (a *Agent) configuration() (guestwire.Configure, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.configure == nil {
		return guestwire.Configure{}, refuse(guestwire.NotConfigured, "")
	}
	return *a.configure, nil
}

// lookup finds a user; standard is the configured default user.
func (a *Agent) lookup(name, standard string) (account, error) {
	if !a.conf.SameUser {
		return lookupAccount(a.under("/etc"), name)
	}
	if name != standard && name != "root" {
		return account{}, refuse(guestwire.UserNotFound, name)
	}
	return account{name: name, same: true}, nil
}

// under is where a path of the guest lies for the agent.
func (a *Agent) under(path string) string {
	if a.conf.Root == "" {
		return path
	}
	return filepath.Join(a.conf.Root, path)
}

// refuse makes a refusal; detail is for people who debug an agent.
func refuse(code guestwire.Code, detail string) *guestwire.Error {
	return &guestwire.Error{Code: code, Detail: detail[:min(len(detail), 512)]}
}
