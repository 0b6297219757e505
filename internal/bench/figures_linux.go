package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	microvm "github.com/microvmd/microvm/sdk/go"
)

const (
	floorProgram = "/tmp/microvm-bench-floor" // in the guest
	floorWait    = time.Minute                // for the loop in the guest to listen, on an emulated host
	floorAnswer  = 30 * time.Second           // for one byte of it
)

// FloorArgs make this program run GuestFloor; cmd/microvm reads them.
var FloorArgs = []string{"bench", "guest-floor"}

// figures are all of them, in the order of Names.
func (r *run) figures() []figure {
	return []figure{
		{
			name: "exec", title: "exec round trip", goal: 1.3, each: execEach, inside: true,
			subject: "an execution of true, started and waited for through the SDK",
			floor:   "one byte over vsock to a loop in the same guest that starts true, waits for it, and answers",
			open:    r.openExec,
		},
		{
			name: "cold-create", title: "cold create", goal: 1.15, each: 1,
			subject: "POST /v1/sandboxes over the daemon's socket until it answers with a running sandbox",
			floor:   "bare jailer and Firecracker with the same kernel, initrd, drives, limits and boot line: spawn to the agent's hello",
			open:    r.openBoot,
		},
		{
			name: "bare-restore", title: "bare restore", each: 1,
			floor: "bare jailer, /snapshot/load, first echo that returns",
			open:  r.openRestore,
		},
	}
}

func (r *run) openBoot(context.Context, *undo) (subject, floor sample, err error) {
	return r.coldCreate, r.bares.bootFloor, nil
}

func (r *run) coldCreate(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	sb, err := r.create(ctx)
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	return took, r.remove(ctx, sb.ID)
}

func (r *run) openRestore(ctx context.Context, back *undo) (subject, floor sample, err error) {
	dir := filepath.Join(r.StateDir, folder, "snapshot")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, nil, err
	}
	back.add("remove snapshot", func() error { return os.RemoveAll(dir) })
	s, err := r.bares.takeSnapshot(ctx, dir)
	if err != nil {
		return nil, nil, fmt.Errorf("take snapshot: %w", err)
	}
	return nil, func(ctx context.Context) (time.Duration, error) { return r.bares.restoreFloor(ctx, s) }, nil
}

// openExec starts the loop in the sandbox that was read, and connects to it.
func (r *run) openExec(ctx context.Context, back *undo) (subject, floor sample, err error) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return nil, nil, err
	}
	sb := r.probed.ID
	if _, err := r.Client.Files.Upload(ctx, sb, floorProgram, bytes.NewReader(self), microvm.WithMode(0o755)); err != nil {
		return nil, nil, err
	}
	root, timeout := "root", 2*3600
	loop, err := r.Client.Executions.Create(ctx, sb, microvm.ExecutionCreate{
		Cmd: floorProgram, Args: FloorArgs, User: &root, TimeoutSeconds: &timeout,
	})
	if err != nil {
		return nil, nil, err
	}
	conn, err := r.dialLoop(ctx, sb, loop.ID)
	if err != nil {
		return nil, nil, err
	}
	back.add("close connection", conn.Close)
	subject = func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		done, err := r.Client.Run(ctx, sb, "true")
		took := time.Since(began)
		if err == nil {
			err = done.Err()
		}
		if err == nil && (done.ExitCode == nil || *done.ExitCode != 0) {
			err = errors.New("true did not exit with 0")
		}
		return took, err
	}
	floor = func(context.Context) (time.Duration, error) {
		one := []byte{1}
		if err := conn.SetDeadline(time.Now().Add(floorAnswer)); err != nil {
			return 0, err
		}
		began := time.Now()
		if _, err := conn.Write(one); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(conn, one); err != nil {
			return 0, err
		}
		return time.Since(began), nil
	}
	return subject, floor, nil
}

// dialLoop connects to the loop as soon as it listens.
func (r *run) dialLoop(ctx context.Context, sb, loop string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, floorWait)
	defer cancel()
	for {
		try, stop := context.WithTimeout(ctx, echoTry)
		conn, err := dialGuest(try, filepath.Join(r.jail(sb), "v.sock"), FloorPort)
		stop()
		if err == nil {
			return conn, nil
		}
		if ended, failed := r.Client.Executions.Retrieve(ctx, sb, loop); failed == nil && ended.Ended() {
			return nil, fmt.Errorf("the loop in the guest ended (%s): %.200q", ended.Status, ended.Stderr)
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("connect to the loop in the guest: %w", err)
		}
		time.Sleep(20 * time.Millisecond) // while nothing is measured
	}
}
