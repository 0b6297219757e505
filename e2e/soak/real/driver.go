// Package real drives the soak against a daemon of its own with real microVMs.
// Its daemon is killed by SIGKILL, its VMMs through their cgroups. It runs on a
// host with KVM, as root.
package real

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/microvmd/microvm/e2e/harness"
	"github.com/microvmd/microvm/e2e/soak"
	microvm "github.com/microvmd/microvm/sdk/go"
)

// markTag is the tag that carries a create's mark.
const markTag = "soak"

// node is a soak.Driver.
type node struct {
	daemon *harness.Daemon

	mu     sync.Mutex
	client *microvm.Client // guarded by mu; of this life
	up     chan struct{}   // guarded by mu; closed while there is a daemon
	life   int             // guarded by mu; which daemon it is, or will be
}

func newNode(d *harness.Daemon) *node {
	up := make(chan struct{})
	close(up)
	return &node{daemon: d, client: client(d), up: up}
}

// client makes each call one request.
func client(d *harness.Daemon) *microvm.Client {
	return microvm.New(microvm.WithSocket(d.Socket), microvm.WithMaxRetries(0))
}

// current waits for a daemon.
func (n *node) current(ctx context.Context) (*microvm.Client, int, error) {
	for {
		n.mu.Lock()
		client, up, life := n.client, n.up, n.life
		n.mu.Unlock()
		select {
		case <-up:
			return client, life, nil
		default:
		}
		select {
		case <-up:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
}

// ask is one request. A connection that broke while its daemon was killed is an
// answer that was lost; any other is the daemon's fault.
func ask[T any](ctx context.Context, n *node, do func(*microvm.Client) (*T, error)) (*T, error) {
	client, life, err := n.current(ctx)
	if err != nil {
		return nil, err
	}
	answer, err := do(client)
	var refusal *microvm.Error
	var broken *microvm.ConnectionError
	switch {
	case errors.As(err, &refusal):
		return nil, &soak.Refusal{Code: string(refusal.Code), Message: refusal.Error()}
	case errors.As(err, &broken):
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.life != life {
			return nil, soak.ErrLost
		}
	}
	return answer, err
}

// killWait is the longest pause before a kill, in which operations get on.
const killWait = time.Second

// KillDaemon kills it by SIGKILL while operations run.
func (n *node) KillDaemon(ctx context.Context, luck *rand.Rand, down func()) (string, error) {
	select { // a random moment, and no condition
	case <-time.After(time.Duration(luck.Int64N(int64(killWait)))):
	case <-ctx.Done():
		return "", ctx.Err()
	}
	up := make(chan struct{})
	n.mu.Lock()
	n.life++
	n.up = up
	n.mu.Unlock()
	if err := n.daemon.Signal(os.Kill); err != nil {
		return "", err
	}
	step := lastStep(n.daemon.LogPath)
	down()
	if err := n.daemon.Restart(ctx); err != nil {
		return step, err
	}
	n.mu.Lock()
	n.client = client(n.daemon)
	n.mu.Unlock()
	close(up)
	return step, nil
}

var logged = regexp.MustCompile(`(?m)^.*msg=("[^"]*"|\S+)(?:.* step=("[^"]*"|\S+))?`)

// lastStep is the last thing that a daemon said before it was killed.
func lastStep(path string) string {
	log, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	log = bytes.TrimSpace(log)
	found := logged.FindSubmatch(log[bytes.LastIndexByte(log, '\n')+1:])
	if found == nil {
		return "before it said anything"
	}
	return fmt.Sprintf("after %s %s", found[1], found[2])
}

// KillVMM kills all processes of a sandbox's cgroup.
func (n *node) KillVMM(id string) error {
	err := os.WriteFile(filepath.Join(harness.Cgroup(n.daemon.Instance, id), "cgroup.kill"), []byte("1"), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func box(sb microvm.Sandbox) soak.Sandbox {
	return soak.Sandbox{
		ID: sb.ID, Mark: sb.Tags[markTag], State: string(sb.State), StopReason: string(value(sb.StopReason)), Reason: string(value(sb.Reason)),
		Boot: string(value(sb.Boot)), Created: sb.Created, Expires: sb.Expires, Stopped: value(sb.Stopped),
	}
}

// one is a request that answers with a sandbox.
func one(ctx context.Context, n *node, do func(*microvm.Client) (*microvm.Sandbox, error)) (soak.Sandbox, error) {
	sb, err := ask(ctx, n, do)
	if err != nil {
		return soak.Sandbox{}, err
	}
	return box(*sb), nil
}

func (n *node) Create(ctx context.Context, spec soak.Spec) (soak.Sandbox, error) {
	idle := int(spec.Idle / time.Second)
	if idle == 0 {
		idle = -1
	}
	ttl := int(spec.TTL / time.Second)
	return one(ctx, n, func(c *microvm.Client) (*microvm.Sandbox, error) {
		return c.Sandboxes.Create(ctx, microvm.SandboxCreate{
			Image: "python", TTLSeconds: &ttl, IdleSeconds: &idle, Tags: microvm.Tags{markTag: spec.Mark},
		})
	})
}

func (n *node) Get(ctx context.Context, id string) (soak.Sandbox, error) {
	return one(ctx, n, func(c *microvm.Client) (*microvm.Sandbox, error) { return c.Sandboxes.Retrieve(ctx, id) })
}

func (n *node) Delete(ctx context.Context, id string) (soak.Sandbox, error) {
	return one(ctx, n, func(c *microvm.Client) (*microvm.Sandbox, error) { return c.Sandboxes.Delete(ctx, id) })
}

func (n *node) Extend(ctx context.Context, id string, ttl time.Duration) (soak.Sandbox, error) {
	return one(ctx, n, func(c *microvm.Client) (*microvm.Sandbox, error) {
		return c.Sandboxes.Extend(ctx, id, int(ttl/time.Second))
	})
}

func (n *node) Touch(ctx context.Context, id string) (soak.Sandbox, error) {
	return one(ctx, n, func(c *microvm.Client) (*microvm.Sandbox, error) { return c.Sandboxes.Touch(ctx, id) })
}

func (n *node) Running(ctx context.Context) ([]soak.Sandbox, error) {
	list, err := ask(ctx, n, func(c *microvm.Client) (*microvm.SandboxList, error) {
		return c.Sandboxes.List(ctx, microvm.ListSandboxesParams{State: harness.Ptr(microvm.SandboxStateRunning), Limit: harness.Ptr(100)})
	})
	if err != nil {
		return nil, err
	}
	var all []soak.Sandbox
	for _, sb := range list.Data {
		all = append(all, box(sb))
	}
	return all, nil
}

func ran(e microvm.Execution) soak.Execution {
	return soak.Execution{
		ID: e.ID, Sandbox: e.Sandbox, Seed: soak.SeedOf(e.Args), Status: string(e.Status), Reason: string(value(e.Reason)), ExitCode: e.ExitCode,
		Signal: value(e.Signal), OOM: e.OOMKilled, Bytes: [2]int64{e.StdoutBytes, e.StderrBytes}, Created: e.Created, Finished: value(e.Finished),
	}
}

func (n *node) Start(ctx context.Context, id string, p soak.Program) (soak.Execution, error) {
	cmd, args := p.Command()
	timeout := int(p.Timeout / time.Second)
	e, err := ask(ctx, n, func(c *microvm.Client) (*microvm.Execution, error) {
		return c.Executions.Create(ctx, id, microvm.ExecutionCreate{Cmd: cmd, Args: args, TimeoutSeconds: &timeout})
	})
	if err != nil {
		return soak.Execution{}, err
	}
	return ran(*e), nil
}

func (n *node) Look(ctx context.Context, sandbox, id string, wait time.Duration) (soak.Execution, error) {
	for began := time.Now(); ; {
		e, err := ask(ctx, n, func(c *microvm.Client) (*microvm.Execution, error) { return c.Executions.Retrieve(ctx, sandbox, id) })
		if err != nil {
			return soak.Execution{}, err
		}
		if e.Ended() || time.Since(began) >= wait {
			seen := ran(*e)
			seen.HasOutput = true
			for i, text := range []string{e.Stdout, e.Stderr} {
				seen.Output[i] = soak.Tail{Offset: seen.Bytes[i] - int64(len(text)), Bytes: []byte(text)}
			}
			return seen, nil
		}
		select {
		case <-time.After(200 * time.Millisecond): // between two looks
		case <-ctx.Done():
			return soak.Execution{}, ctx.Err()
		}
	}
}

func (n *node) Executions(ctx context.Context, id string) ([]soak.Execution, error) {
	list, err := ask(ctx, n, func(c *microvm.Client) (*microvm.ExecutionList, error) {
		return c.Executions.List(ctx, id, microvm.ListExecutionsParams{Limit: harness.Ptr(100)})
	})
	if err != nil {
		return nil, err
	}
	var all []soak.Execution
	for _, e := range list.Data {
		all = append(all, ran(e))
	}
	return all, nil
}
