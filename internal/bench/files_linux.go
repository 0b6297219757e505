package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// benchFile is the file in the guest.
const benchFile = "microvm-bench-file"

// openUpload: a file of the SDK's to the guest's disk.
func (r *run) openUpload(ctx context.Context, back *undo) (subject, floor sample, err error) {
	conn, err := r.openLoop(ctx, back)
	if err != nil {
		return nil, nil, err
	}
	back.add("remove the file", func() error { return r.removeFile(ctx) })
	sb, content := r.probed.ID, bytes.Repeat([]byte("microvm\n"), outputBytes/8)
	subject = func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		_, err := r.Client.Files.Upload(ctx, sb, benchFile, bytes.NewReader(content))
		return time.Since(began), err
	}
	floor = func(context.Context) (time.Duration, error) {
		if err := conn.SetDeadline(time.Now().Add(floorAnswer)); err != nil {
			return 0, err
		}
		began := time.Now()
		if _, err := conn.Write([]byte{askInput}); err != nil {
			return 0, err
		}
		if _, err := conn.Write(content); err != nil {
			return 0, err
		}
		_, err := io.ReadFull(conn, make([]byte, 1))
		return time.Since(began), err
	}
	return subject, floor, nil
}

// openDownload: a file of the guest's, which its page cache has, to the SDK.
func (r *run) openDownload(ctx context.Context, back *undo) (subject, floor sample, err error) {
	conn, err := r.openLoop(ctx, back)
	if err != nil {
		return nil, nil, err
	}
	back.add("remove the file", func() error { return r.removeFile(ctx) })
	sb := r.probed.ID
	if _, err := r.Client.Files.Upload(ctx, sb, benchFile, bytes.NewReader(make([]byte, outputBytes))); err != nil {
		return nil, nil, err
	}
	subject = func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		n, err := r.Client.Files.Download(ctx, sb, benchFile, io.Discard)
		if err == nil && n != outputBytes {
			err = fmt.Errorf("%d bytes came", n)
		}
		return time.Since(began), err
	}
	answer := make([]byte, outputBytes)
	floor = func(context.Context) (time.Duration, error) { return askLoop(conn, askOutput, answer) }
	return subject, floor, nil
}

// removeFile makes room again, also after an interruption.
func (r *run) removeFile(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanWait)
	defer cancel()
	_, err := r.Client.Files.Remove(ctx, r.probed.ID, benchFile, false)
	if microvm.HasCode(err, microvm.ErrorCodeFileNotFound) {
		return nil
	}
	return err
}

// measureMemory sends a large file in and gets it back, and looks at what daemon
// and agent take for that.
func (r *run) measureMemory(ctx context.Context) (all []MemoryResult, err error) {
	defer func() {
		if err = errors.Join(err, r.removeFile(ctx)); err != nil {
			err = fmt.Errorf("measure %s: %w", MemoryName, interrupted(ctx, err))
		}
	}()
	say(r.Progress, "memory of files: prepare\n")
	pid, err := r.daemonPID(ctx)
	if err != nil {
		return nil, err
	}
	sb := r.probed.ID
	upload := func(size int64) error {
		_, err := r.Client.Files.Upload(ctx, sb, benchFile, io.LimitReader(pattern{}, size))
		return err
	}
	download := func(size int64) error {
		n, err := r.Client.Files.Download(ctx, sb, benchFile, io.Discard)
		if err == nil && n != size {
			err = fmt.Errorf("%d bytes came", n)
		}
		return err
	}
	if err := errors.Join(upload(memoryWarm), download(memoryWarm)); err != nil {
		return nil, err
	}
	for _, way := range []struct {
		name, title string
		do          func(int64) error
	}{{"upload", "upload of 300 MB", upload}, {"download", "download of 300 MB", download}} {
		m := MemoryResult{Name: way.name, Title: way.title, Bytes: memoryBytes}
		if m.Daemon.Before, err = resident(pid, true); err != nil {
			return nil, err
		}
		if m.Agent.Before, err = r.agentResident(ctx, true); err != nil {
			return nil, err
		}
		began := time.Now()
		if err := way.do(memoryBytes); err != nil {
			return nil, err
		}
		m.Seconds = time.Since(began).Seconds()
		if m.Daemon.Peak, err = resident(pid, false); err != nil {
			return nil, err
		}
		if m.Agent.Peak, err = r.agentResident(ctx, false); err != nil {
			return nil, err
		}
		m.judge()
		say(r.Progress, "%s: done\n", m.Title)
		all = append(all, m)
	}
	return all, nil
}

// pattern is content without an end.
type pattern struct{}

func (pattern) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(i)
	}
	return len(p), nil
}

// resident is what a process takes now, and begins its peak anew; or its peak
// since then (proc(5): clear_refs, VmHWM).
func resident(pid int, begin bool) (int64, error) {
	dir, name := filepath.Join("/proc", strconv.Itoa(pid)), "VmHWM"
	if begin {
		name = "VmRSS"
		if err := os.WriteFile(filepath.Join(dir, "clear_refs"), []byte("5"), 0); err != nil {
			return 0, err
		}
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return 0, err
	}
	return residentOf(string(status), name)
}

// agentResident is the same of the agent's worker, which is the process in the
// guest that has the agent's name and is not the first.
func (r *run) agentResident(ctx context.Context, begin bool) (int64, error) {
	const find = `for p in /proc/[0-9]*; do read -r c <$p/comm || continue; test "$c" = guestd && test $p != /proc/1 && break; done 2>/dev/null; `
	script, name := find+`cat $p/status`, "VmHWM"
	if begin {
		script, name = find+`echo 5 >$p/clear_refs; cat $p/status`, "VmRSS"
	}
	root := "root"
	exe, err := r.Client.Executions.Run(ctx, r.probed.ID, microvm.ExecutionCreate{Cmd: "sh", Args: []string{"-c", script}, User: &root})
	if err == nil {
		err = exe.Err()
	}
	if err != nil {
		return 0, err
	}
	return residentOf(exe.Stdout, name)
}

// daemonPID is who listens at the daemon's socket (unix(7), SO_PEERCRED).
func (r *run) daemonPID(ctx context.Context) (int, error) {
	base, header, client, err := r.Client.Connection()
	if err != nil {
		return 0, err
	}
	pid := 0
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		if conn, ok := got.Conn.(*net.UnixConn); ok {
			pid, err = peer(conn)
		}
	}})
	request, failed := http.NewRequestWithContext(ctx, http.MethodGet, base+"/v1/health", nil)
	if failed != nil {
		return 0, failed
	}
	request.Header = header
	reply, failed := client.Do(request)
	if failed != nil {
		return 0, failed
	}
	failed = reply.Body.Close()
	if err = errors.Join(err, failed); err == nil && pid == 0 {
		err = errors.New("the daemon is not at a Unix socket of this host")
	}
	return pid, err
}

func peer(conn *net.UnixConn) (pid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		var who *unix.Ucred
		if who, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); failed == nil {
			pid = int(who.Pid)
		}
	})
	return pid, errors.Join(err, failed)
}
