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
	"strconv"
	"time"

	microvm "github.com/microvmd/microvm/sdk/go"
)

const (
	floorProgram = "/tmp/microvm-bench-floor" // in the guest
	floorWait    = time.Minute                // for the loop in the guest to listen, on an emulated host
	floorAnswer  = 30 * time.Second           // for one byte of it

	templateWait  = 10 * time.Minute // for the daemon's template, on an emulated host
	templateEvery = 5 * time.Second  // between two creates that look for it
)

// FloorArgs make this program run GuestFloor; cmd/microvm reads them.
var FloorArgs = []string{"bench", "guest-floor"}

// figures are all of them, in the order of Names.
func (r *run) figures() []figure {
	return []figure{
		{
			name: "exec", title: "exec round trip", goal: 1.3, each: execEach, inside: true,
			subject: "an execution of true through the SDK's Run: one POST that waits for the end",
			floor:   "one byte over vsock to a loop in the same guest that starts true, waits for it, and answers",
			open:    r.openExec,
		},
		{
			name: "output", title: "output of 8 MiB", goal: 1 / 0.7, each: 1, inside: true,
			subject: "a program that writes 8 MiB, from its start to the end of its stream at the SDK; what falls out on the way does not count",
			floor:   "8 MiB of a loop in the same guest over vsock to a reader on the host",
			open:    r.openOutput,
		},
		{
			name: "upload", title: "upload of 8 MiB", goal: 1 / 0.7, each: 1, inside: true,
			subject: "the SDK's Upload of 8 MiB into a file of the guest",
			floor:   "8 MiB over vsock to a loop in the same guest that reads them and answers",
			open:    r.openUpload,
		},
		{
			name: "download", title: "download of 8 MiB", goal: 1 / 0.7, each: 1, inside: true,
			subject: "the SDK's Download of a file of 8 MiB that the guest has in its page cache",
			floor:   "8 MiB of a loop in the same guest over vsock to a reader on the host",
			open:    r.openDownload,
		},
		{
			name: "cold-create", title: "cold create", goal: 1.15, each: 1,
			subject: "POST /v1/sandboxes with boot: cold over the daemon's socket until it answers with a running sandbox",
			floor:   "bare jailer and Firecracker with the same kernel, initrd, drives, limits and boot line: spawn to the agent's hello",
			open:    r.openCold,
		},
		{
			name: "snapshot-create", title: "snapshot create", goal: 1.25, each: 1,
			subject: "POST /v1/sandboxes over the daemon's socket until it answers with a running sandbox, restored from a template",
			floor:   "bare jailer and Firecracker with a snapshot of the same make: spawn, /snapshot/load, first echo that returns",
			open:    r.openSnapshot,
		},
	}
}

func (r *run) openCold(context.Context, *undo) (subject, floor sample, err error) {
	return func(ctx context.Context) (time.Duration, error) { return r.timeCreate(ctx, microvm.SandboxBootCold) }, r.bares.bootFloor, nil
}

// timeCreate is one create, whole, of a sandbox that must come up in this way.
func (r *run) timeCreate(ctx context.Context, boot microvm.SandboxBoot) (time.Duration, error) {
	began := time.Now()
	sb, err := r.create(ctx, boot == microvm.SandboxBootCold)
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	if err := r.remove(ctx, sb.ID); err != nil {
		return 0, err
	}
	if got := bootOf(sb); got != boot {
		return 0, fmt.Errorf("a sandbox came up by %q, want %q", got, boot)
	}
	return took, nil
}

func bootOf(sb *microvm.Sandbox) (boot microvm.SandboxBoot) {
	if sb.Boot != nil {
		boot = *sb.Boot
	}
	return boot
}

// awaitTemplate creates sandboxes until one is restored: the first that boots
// makes the daemon make a template in the background, and nothing else tells
// when that is there.
func (r *run) awaitTemplate(ctx context.Context, shape microvm.SandboxCreate) error {
	ctx, cancel := context.WithTimeoutCause(ctx, templateWait, fmt.Errorf("no create was restored within %s: does the daemon make templates (--templates)?", templateWait))
	defer cancel()
	for {
		sb, err := r.createOf(ctx, shape, false)
		if err == nil {
			err = r.remove(ctx, sb.ID)
		}
		if err != nil || bootOf(sb) == microvm.SandboxBootSnapshot {
			return interrupted(ctx, err)
		}
		say(r.Progress, "the node has no template of %s yet\n", shape.Image)
		select {
		case <-time.After(templateEvery): // a boot beside it makes the template late
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (r *run) openSnapshot(ctx context.Context, back *undo) (subject, floor sample, err error) {
	if err := r.awaitTemplate(ctx, microvm.SandboxCreate{Image: r.Image}); err != nil {
		return nil, nil, fmt.Errorf("wait for template: %w", err)
	}
	dir := filepath.Join(r.StateDir, folder, "snapshot")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, nil, err
	}
	back.add("remove snapshot", func() error { return os.RemoveAll(dir) })
	s, err := r.bares.takeSnapshot(ctx, dir)
	if err != nil {
		return nil, nil, fmt.Errorf("take snapshot: %w", err)
	}
	subject = func(ctx context.Context) (time.Duration, error) {
		return r.timeCreate(ctx, microvm.SandboxBootSnapshot)
	}
	floor = func(ctx context.Context) (time.Duration, error) { return r.bares.restoreFloor(ctx, s) }
	return subject, floor, nil
}

// openLoop starts the loop in the sandbox that was read, and connects to it.
func (r *run) openLoop(ctx context.Context, back *undo) (net.Conn, error) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	sb := r.probed.ID
	if _, err := r.Client.Files.Upload(ctx, sb, floorProgram, bytes.NewReader(self), microvm.WithMode(0o755)); err != nil {
		return nil, err
	}
	root, timeout := "root", 2*3600
	loop, err := r.Client.Executions.Create(ctx, sb, microvm.ExecutionCreate{
		Cmd: floorProgram, Args: FloorArgs, User: &root, TimeoutSeconds: &timeout,
	})
	if err != nil {
		return nil, err
	}
	back.add("end the loop", func() error { // the next figure has its own
		_, err := r.Client.Executions.Cancel(context.WithoutCancel(ctx), sb, loop.ID, microvm.ExecutionCancel{})
		return err
	})
	conn, err := r.dialLoop(ctx, sb, loop.ID)
	if err != nil {
		return nil, err
	}
	back.add("close connection", conn.Close)
	return conn, nil
}

func (r *run) openExec(ctx context.Context, back *undo) (subject, floor sample, err error) {
	conn, err := r.openLoop(ctx, back)
	if err != nil {
		return nil, nil, err
	}
	sb := r.probed.ID
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
	floor = func(context.Context) (time.Duration, error) { return askLoop(conn, askTrue, make([]byte, 1)) }
	return subject, floor, nil
}

// askLoop asks the loop in the guest for something and reads its answer.
func askLoop(conn net.Conn, what byte, answer []byte) (time.Duration, error) {
	if err := conn.SetDeadline(time.Now().Add(floorAnswer)); err != nil {
		return 0, err
	}
	began := time.Now()
	if _, err := conn.Write([]byte{what}); err != nil {
		return 0, err
	}
	if _, err := io.ReadFull(conn, answer); err != nil {
		return 0, err
	}
	return time.Since(began), nil
}

func (r *run) openOutput(ctx context.Context, back *undo) (subject, floor sample, err error) {
	conn, err := r.openLoop(ctx, back)
	if err != nil {
		return nil, nil, err
	}
	sb := r.probed.ID
	answer := make([]byte, outputBytes)
	subject = func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		exe, err := r.Client.Executions.Create(ctx, sb, microvm.ExecutionCreate{Cmd: "head", Args: []string{"-c", strconv.Itoa(outputBytes), "/dev/zero"}})
		if err != nil {
			return 0, err
		}
		read := 0
		for event, err := range r.Client.Executions.Stream(ctx, sb, exe.ID, microvm.Position{}) {
			if err != nil {
				return 0, err
			}
			read += len(event.Data)
		}
		if read == 0 {
			return 0, errors.New("no output was read")
		}
		// A reader that is too slow misses some. Only what was read counts.
		return time.Duration(float64(time.Since(began)) * outputBytes / float64(read)), nil
	}
	floor = func(context.Context) (time.Duration, error) { return askLoop(conn, askOutput, answer) }
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
