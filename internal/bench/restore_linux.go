package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
)

const echoTry = 2 * time.Second // silence is one form of failure: then a new connection

// snapshot is of a bare VM that said hello and did nothing else. Its files are
// root's and read-only: no VMM can change what the next one starts from.
type snapshot struct{ state, memory string }

// takeSnapshot boots a bare VM, takes its snapshot and puts that into dir, as
// the daemon keeps a template: the memory without its zeros, all of it on the
// disk. Its scratch disk is the blank one, which nothing has mounted.
func (b *bares) takeSnapshot(ctx context.Context, dir string) (s snapshot, err error) {
	vm, err := b.prepare(b.bootFiles(), b.shape.scratch)
	if err != nil {
		return snapshot{}, err
	}
	defer func() { err = errors.Join(err, vm.close()) }()
	if _, err := b.boot(ctx, vm); err != nil {
		return snapshot{}, err
	}
	if err := vm.call(ctx, http.MethodPatch, "/vm", `{"state":"Paused"}`); err != nil {
		return snapshot{}, err
	}
	err = vm.call(ctx, http.MethodPut, "/snapshot/create", `{"snapshot_type":"Full","snapshot_path":"state","mem_file_path":"memory"}`)
	if err != nil {
		return snapshot{}, err
	}
	if err := b.end(vm); err != nil { // from here on nobody writes the files
		return snapshot{}, err
	}
	s = snapshot{state: filepath.Join(dir, "state"), memory: filepath.Join(dir, "memory")}
	for _, to := range []string{s.state, s.memory} {
		if err := copyWithoutZeros(filepath.Join(vm.root, filepath.Base(to)), to); err != nil {
			return snapshot{}, fmt.Errorf("keep snapshot: %w", err)
		}
	}
	return s, nil
}

// restoreFloor is one bare restore: from before the jailer is started until the
// first echo came back.
func (b *bares) restoreFloor(ctx context.Context, s snapshot) (took time.Duration, err error) {
	vm, err := b.prepare(map[string]string{"image": b.shape.image, "state": s.state, "memory": s.memory}, b.shape.scratch)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, vm.close()) }()
	began := time.Now()
	if err := b.spawn(ctx, vm); err != nil {
		return 0, err
	}
	err = vm.call(ctx, http.MethodPut, "/snapshot/load",
		`{"snapshot_path":"state","mem_backend":{"backend_type":"File","backend_path":"memory"},"resume_vm":true}`)
	if err != nil {
		return 0, err
	}
	if err := firstEcho(ctx, filepath.Join(vm.root, "v.sock")); err != nil {
		return 0, err
	}
	return time.Since(began), nil
}

// firstEcho repeats an echo until one returns: after a load the first connection
// usually gets "OK" and then an end of file.
func firstEcho(ctx context.Context, socket string) error {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialGuest(ctx, socket, guestwire.AgentPort)
		},
		MaxResponseHeaderBytes: guestwire.MaxReplyHeader,
		DisableCompression:     true,
	}
	defer transport.CloseIdleConnections()
	client := guestwire.NewClient(transport)
	for last := time.Now().Add(bareWait); ; time.Sleep(tick) {
		try, cancel := context.WithTimeout(ctx, echoTry)
		err := client.Echo(try, "bench")
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case time.Now().After(last):
			return fmt.Errorf("no echo after the restore: %w", err)
		}
		transport.CloseIdleConnections()
	}
}
