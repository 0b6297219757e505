package guest

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/microvmd/microvm/internal/guestwire"
)

// BenchmarkExecution is what the host pays for one execution: a start whose
// reply holds the end of it. Its floor is BenchmarkFloor. With a cgroup v2
// directory in MICROVM_TEST_CGROUP each program gets a cgroup, as in a guest.
func BenchmarkExecution(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("becomes another user")
	}
	box := newUserBox(b, func(c *Config) { c.Cgroup = os.Getenv("MICROVM_TEST_CGROUP") })
	start := guestwire.Start{Cmd: "true", Pull: guestwire.Pull{WaitMS: guestwire.MaxPullWait}}
	for i := 0; b.Loop(); i++ {
		id := fmt.Sprintf("e%d", i)
		exit, err := box.Start(b.Context(), id, start, guestwire.Sink{})
		if err != nil || exit == nil {
			b.Fatal(exit, err)
		}
		if err := box.Forget(b.Context(), id); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFloor is the least that an execution can cost: a byte over the same
// kind of socket to a loop that starts the program, waits for it, and answers.
func BenchmarkFloor(b *testing.B) {
	path := filepath.Join(b.TempDir(), "floor.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		for one := make([]byte, 1); ; {
			if _, err := conn.Read(one); err != nil {
				return
			}
			pid, err := syscall.ForkExec("/usr/bin/true", []string{"true"}, &syscall.ProcAttr{Env: []string{}})
			if err != nil {
				return
			}
			if _, err := syscall.Wait4(pid, nil, 0, nil); err != nil {
				return
			}
			_, _ = conn.Write(one)
		}
	}()
	conn, err := net.Dial("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	for one := make([]byte, 1); b.Loop(); {
		if _, err := conn.Write(one); err != nil {
			b.Fatal(err)
		}
		if _, err := conn.Read(one); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOutput is how fast the host gets what a program prints. Its floor is
// BenchmarkOutputFloor.
func BenchmarkOutput(b *testing.B) {
	box := newBox(b)
	const size = 256 << 20
	b.SetBytes(size)
	for i := 0; b.Loop(); i++ {
		id := fmt.Sprintf("e%d", i)
		got := int64(0)
		sink := guestwire.Sink{Output: func(f guestwire.Frame) error {
			if f.Offset != got {
				b.Fatalf("%d bytes are lost", f.Offset-got)
			}
			got += int64(len(f.Payload))
			return nil
		}}
		start := guestwire.Start{Cmd: "head", Args: []string{"-c", fmt.Sprint(size), "/dev/zero"}, Pull: guestwire.Pull{WaitMS: guestwire.MaxPullWait}}
		exit, err := box.Start(b.Context(), id, start, sink)
		for err == nil && exit == nil {
			exit, err = box.Pull(b.Context(), id, guestwire.Pull{Stdout: got, WaitMS: guestwire.MaxPullWait}, sink)
		}
		if err != nil || got != size {
			b.Fatal(got, err)
		}
		if err := box.Forget(b.Context(), id); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOutputFloor copies from a pipe to the same kind of socket, and from
// there to nowhere.
func BenchmarkOutputFloor(b *testing.B) {
	const size = 256 << 20
	b.SetBytes(size)
	listener, err := net.Listen("unix", filepath.Join(b.TempDir(), "floor.sock"))
	if err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	for b.Loop() {
		go func() {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			cmd := exec.Command("head", "-c", fmt.Sprint(size), "/dev/zero")
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				return
			}
			_, _ = io.CopyBuffer(struct{ io.Writer }{conn}, struct{ io.Reader }{out}, make([]byte, 64<<10))
			_ = cmd.Wait()
		}()
		conn, err := net.Dial("unix", listener.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		n, err := io.CopyBuffer(io.Discard, struct{ io.Reader }{conn}, make([]byte, 64<<10))
		if err != nil || n != size {
			b.Fatal(n, err)
		}
		_ = conn.Close()
	}
}
