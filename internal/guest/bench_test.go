package guest

import (
	"fmt"
	"net"
	"os"
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
