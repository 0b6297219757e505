package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// inProcess runs a command line against a node and returns its exit code and
// what it said on standard error.
func inProcess(ctx context.Context, node *fakeNode, out io.Writer, args ...string) (int, string) {
	root, g := newRootCommand()
	root.SetArgs(append([]string{"--url", node.server.URL, "--api-key", fakeKey}, args...))
	var b sharedBuffer
	root.SetOut(out)
	root.SetErr(&b)
	cmd, err := root.ExecuteContextC(ctx)
	return finish(cmd, err, g.began, &b), b.String()
}

// sharedBuffer is a buffer for several goroutines, as a file is.
type sharedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (s *sharedBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *sharedBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func noneLeft(t *testing.T, node *fakeNode) {
	t.Helper()
	node.mu.Lock()
	defer node.mu.Unlock()
	if len(node.sandboxes) != 1 {
		t.Errorf("%d sandboxes were made, want 1", len(node.sandboxes))
	}
	for id, sb := range node.sandboxes {
		if sb.State != microvm.SandboxStateStopped {
			t.Errorf("left %s", id)
		}
	}
}

// Ctrl-C while a sandbox comes up: it is waited for, and deleted.
func TestInterruptedCreate(t *testing.T) {
	for _, args := range [][]string{
		{"run", "python", "--", "say", "hello"},
		{"sandbox", "create", "python"},
	} {
		t.Run(args[0], func(t *testing.T) {
			node := newFakeNode()
			defer node.server.Close()
			ctx, cancel := context.WithCancelCause(t.Context())
			gate, asked := node.gate("POST sandbox"), node.event("POST sandbox")
			go func() {
				<-asked
				cancel(&interruption{syscall.SIGINT})
				close(gate)
			}()
			var out bytes.Buffer
			code, text := inProcess(ctx, node, &out, args...)
			if code != 130 || out.Len() > 0 || !strings.HasSuffix(text, "interrupted by SIGINT\n") {
				t.Errorf("code %d, %q, %q", code, out.String(), text)
			}
			noneLeft(t, node)
		})
	}
}

// A reader that went away is no failure of anybody's, and the sandbox is
// deleted all the same.
func TestAReaderThatWentAway(t *testing.T) {
	node := newFakeNode()
	defer node.server.Close()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	_ = reader.Close()
	code, text := inProcess(t.Context(), node, writer, "run", "python", "--", "say", "hello")
	if code != 141 || text != "" {
		t.Fatalf("code %d, %q", code, text)
	}
	noneLeft(t, node)
}
