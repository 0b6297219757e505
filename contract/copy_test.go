package contract

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// cutter is a way to a daemon that breaks: each time so many more bytes went one
// direction, all its connections end.
type cutter struct {
	net.Listener
	to   string
	mu   sync.Mutex
	left []int64 // guarded by mu: bytes until the next break, and the one after it
	down bool    // bytes to the client are counted, not those to the daemon
	cuts int     // guarded by mu
	sent int64   // guarded by mu: bytes in that direction
	all  sync.WaitGroup

	stall   int64         // bytes in that direction after which nothing moves; 0 is never
	reached chan struct{} // closed when that is so
	over    chan struct{} // closed by end
	end     func()
}

func newCutter(t *testing.T, d *daemon, down bool, left ...int64) *cutter {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{Listener: listener, to: d.addr, left: left, down: down, reached: make(chan struct{}), over: make(chan struct{})}
	c.end = sync.OnceFunc(func() {
		_ = listener.Close()
		close(c.over)
		c.all.Wait()
	})
	c.all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			c.all.Go(func() { c.pass(client) })
		}
	})
	t.Cleanup(c.end)
	return c
}

func (c *cutter) pass(client net.Conn) {
	defer client.Close()
	node, err := net.Dial("tcp", c.to)
	if err != nil {
		return
	}
	defer node.Close()
	var both sync.WaitGroup
	one := func(to, from net.Conn, counted bool) {
		defer to.Close()
		defer from.Close()
		part := make([]byte, 32<<10)
		for {
			n, err := from.Read(part)
			breaks := counted && c.count(int64(n))
			if _, sent := to.Write(part[:n]); sent != nil || err != nil || breaks {
				return
			}
		}
	}
	both.Go(func() { one(node, client, !c.down) })
	both.Go(func() { one(client, node, c.down) })
	both.Wait()
}

func (c *cutter) count(n int64) (breaks bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.sent
	c.sent += n
	if c.stall > 0 && c.sent >= c.stall {
		if before < c.stall {
			close(c.reached)
		}
		c.mu.Unlock()
		<-c.over
		c.mu.Lock()
		return true
	}
	if len(c.left) == 0 {
		return false
	}
	if c.left[0] -= n; c.left[0] > 0 {
		return false
	}
	c.left = c.left[1:]
	c.cuts++
	return true
}

// microvm is a command whose way to the daemon is c.
func (c *cutter) microvm(d *daemon, args ...string) *exec.Cmd {
	cmd := d.microvm(args...)
	cmd.Env = append(cmd.Env, "MICROVM_URL=http://"+c.Addr().String(), "XDG_CACHE_HOME="+filepath.Join(d.dir, "cache"))
	return cmd
}

// makeTree makes small files and one that is sent in parts.
func makeTree(t *testing.T, dir string) {
	t.Helper()
	for i := range 200 {
		name := filepath.Join(dir, fmt.Sprintf("d%d", i%7), fmt.Sprintf("file %d", i))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, bytes.Repeat([]byte{byte(i)}, i*300), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	large, err := os.Create(filepath.Join(dir, "d3", "large"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 70 {
		if _, err := large.Write(bytes.Repeat([]byte{byte(i)}, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	if err := large.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestCopiesOverAWayThatBreaks: a directory goes in and comes out over
// connections that break in small files and in large ones. It is the same, and
// what was whole did not go twice.
func TestCopiesOverAWayThatBreaks(t *testing.T) {
	d := start(t)
	create(t, d.remote(), microvm.SandboxCreate{Image: "python", Name: ptr("work")})
	from, to := filepath.Join(t.TempDir(), "tree"), filepath.Join(t.TempDir(), "back")
	makeTree(t, from)
	// With each break at most one part, or what the buffers on the way hold, is lost.
	const all, lost = 70<<20 + 200*199/2*300, 9 << 20
	copied := func(c *cutter, cuts int, want string, args ...string) {
		t.Helper()
		out, err := c.microvm(d, append([]string{"cp", "-v"}, args...)...).CombinedOutput()
		c.end()
		if err != nil || c.cuts != cuts || !strings.Contains(string(out), want) {
			t.Fatalf("%v after %d breaks:\n%s", err, c.cuts, out)
		}
		if c.sent > int64(all+(cuts+1)*lost) || cuts == 0 && c.sent > 1<<20 {
			t.Errorf("%d bytes went over the way for %d", c.sent, all)
		}
	}
	in := newCutter(t, d, false, 1<<20, 20<<20, 3<<20, 50<<20, 1<<20)
	copied(in, 5, "201 files", from, "work:")
	copied(newCutter(t, d, false), 0, "0 files (0 B) copied, 201 unchanged", from, "work:")
	out := newCutter(t, d, true, 1<<20, 1<<20, 20<<20, 30<<20, 20<<20, 1<<20)
	copied(out, 6, "201 files", "work:tree", to)
	copied(newCutter(t, d, true), 0, "0 files (0 B) copied, 201 unchanged", "work:tree/.", to)
	if diff, err := exec.Command("diff", "-r", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %.500s", err, diff)
	}
	if left, err := exec.Command("find", to, "-name", ".microvm-*").CombinedOutput(); err != nil || len(left) > 0 {
		t.Fatalf("%v: left %s", err, left)
	}
}

// TestCopiesGoOnAfterCtrlC: in the middle of a large file, and in both directions
// the same command goes on there, into what the first one made.
func TestCopiesGoOnAfterCtrlC(t *testing.T) {
	d := start(t)
	create(t, d.remote(), microvm.SandboxCreate{Image: "python", Name: ptr("work")})
	from, to := filepath.Join(t.TempDir(), "tree"), filepath.Join(t.TempDir(), "back")
	makeTree(t, from)
	for _, test := range []struct {
		down bool
		args []string
		says string
	}{
		{false, []string{"cp", "-v", from, "work:fresh"}, "stays in the sandbox"},
		{true, []string{"cp", "-v", "work:fresh", to}, "MiB of d3/large are kept for the next copy"},
	} {
		c := newCutter(t, d, test.down)
		c.stall = 50 << 20
		cmd := c.microvm(d, test.args...)
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		<-c.reached
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 || !strings.Contains(said.String(), test.says) || !strings.Contains(said.String(), "the same command goes on") {
			t.Fatalf("%v: %s", err, said.String())
		}
		c.end()
		next := newCutter(t, d, test.down)
		out, err := next.microvm(d, test.args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "copied") {
			t.Fatalf("%v: %s", err, out)
		}
		if next.end(); next.sent > 45<<20 {
			t.Errorf("%q: %d bytes went the second time", test.args, next.sent)
		}
	}
	if diff, err := exec.Command("diff", "-r", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %.500s", err, diff)
	}
}
