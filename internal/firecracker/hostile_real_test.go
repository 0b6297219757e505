//go:build kvm && linux

package firecracker_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/firecracker"
)

// The test binary under the name "firecracker" is a VMM that a guest has broken
// out of. The released jailer starts it in a real jail; what it does there is
// written in what should be its kernel.
func init() {
	if filepath.Base(os.Args[0]) != "firecracker" {
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "--version" {
		fmt.Println("Firecracker v1.17.0")
		os.Exit(0)
	}
	script, err := os.ReadFile("/vmlinux")
	if err != nil {
		os.Exit(99)
	}
	id := ""
	for n, arg := range os.Args {
		if arg == "--id" {
			id = os.Args[n+1]
		}
	}
	for _, line := range strings.Split(string(script), "\n") {
		misbehave(line, id)
	}
	for {
		time.Sleep(time.Hour) // a select without cases would be a deadlock, which ends a program
	}
}

func misbehave(line, id string) {
	verb, rest, _ := strings.Cut(line, " ")
	switch verb {
	case "exit":
		code, _ := strconv.Atoi(rest)
		os.Exit(code)
	case "link": // name target
		name, target, _ := strings.Cut(rest, " ")
		_ = os.Remove(name)
		_ = os.Symlink(target, name)
	case "file":
		_ = os.WriteFile(rest, []byte("x"), 0o600)
	case "fifo":
		_ = unix.Mkfifo(rest, 0o600)
	case "mute": // listens and never answers
		l, _ := net.Listen("unix", rest)
		defer func() { _ = l }()
	case "flood": // answers without an end
		l, _ := net.Listen("unix", rest)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					_, _ = c.Read(make([]byte, 1)) // an answer before the question is another error
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
					for err == nil {
						_, err = c.Write(bytes.Repeat([]byte("x"), 1<<16))
					}
				}()
			}
		}()
	case "serve": // as a good VMM would
		l, _ := net.Listen("unix", "/a.sock")
		go func() {
			_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { //nolint:gosec // a test
				if r.Method == http.MethodGet {
					fmt.Fprintf(w, `{"id":%q,"state":"Not started"}`, id)
					return
				}
				w.WriteHeader(http.StatusNoContent)
			}))
		}()
	case "hello": // says something that is no hello
		go func() {
			c, err := net.Dial("unix", "/v.sock_1025")
			for err == nil {
				_, err = io.WriteString(c, rest)
			}
		}()
	case "log":
		f, _ := os.OpenFile("/log", os.O_RDWR, 0)
		go func() {
			for {
				_, _ = f.WriteString(strings.Repeat("\x1b[2Jflood ", 100))
			}
		}()
	case "deep":
		n, _ := strconv.Atoi(rest)
		for ; n > 0 && os.Mkdir("d", 0o700) == nil && os.WriteFile("f", nil, 0) == nil && os.Chdir("d") == nil; n-- {
			continue
		}
		_ = os.Chdir("/")
	}
}

// newHostile makes a host whose VMM misbehaves as the script says.
func newHostile(t *testing.T, log io.Writer, script ...string) *host {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"firecracker": binary, "vmlinux": []byte(strings.Join(script, "\n"))} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o700); err != nil { //nolint:gosec // a binary
			t.Fatal(err)
		}
	}
	return newHost(t, func(c *firecracker.Config) {
		c.FirecrackerPath, c.KernelPath = filepath.Join(dir, "firecracker"), filepath.Join(dir, "vmlinux")
		if log != nil {
			c.Log = slog.New(slog.NewTextHandler(log, nil))
		}
	})
}

func TestHostileVMMAtLaunch(t *testing.T) {
	for name, c := range map[string]struct{ script, want, log string }{
		"ends at once":       {"exit 152", "ended with code 152 (bad configuration)", ""},
		"makes a wrong call": {"exit 148", "ended with code 148 (forbidden system call)", "security event"},
		"links its API":      {"link a.sock /dev/kvm", "is no socket", ""},
		"links far away":     {"link a.sock /../../../../../../run/docker.sock", "is no socket", ""},
		"API is a file":      {"file a.sock", "is no socket", ""},
		"API is a FIFO":      {"fifo a.sock", "is no socket", ""},
		"API is mute":        {"mute a.sock", "deadline exceeded", ""},
		"API floods":         {"flood a.sock", "over 65536 bytes", ""},
		"no API":             {"file other", "deadline exceeded", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			h := newHostile(t, &log, c.script)
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
			defer cancel()
			plan := h.plan(30)
			plan.VCPUs = 16 // a Go program has more threads than a VMM
			t.Cleanup(func() { h.remove(t, plan.Host) })
			timed(t, "cgroup", func() error { return h.cgroups.Create(ctx, plan) })
			timed(t, "prepare", func() error { return h.Prepare(ctx, plan) })
			err := h.Launch(ctx, plan)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("want %q, got %v", c.want, err)
			}
			if !strings.Contains(log.String(), c.log) {
				t.Errorf("log lacks %q: %s", c.log, log.String())
			}
		})
	}
}

func TestHostileVMMAfterLaunch(t *testing.T) {
	h := newHostile(t, nil, "log", "deep 2000", "link v.sock /../../../run/docker.sock", "link image /etc/shadow", "link up ..", "serve", "hello "+strings.Repeat("x", 1000))
	ctx := deadline(t)
	plan := h.plan(31)
	plan.VCPUs = 16
	h.launch(t, ctx, plan)
	timed(t, "start", func() error { return h.Start(ctx, plan) })
	_, err := h.Hello(ctx, plan.Host)
	if err == nil || !strings.Contains(err.Error(), "line is too long") || len(err.Error()) > 8<<10 || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("hello: %v", err)
	}
	if err := h.Client(plan.Host).Echo(ctx, "x"); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("echo: %v", err)
	}
	shadow, err := os.Stat("/etc/shadow")
	if err != nil || shadow.Size() == 0 {
		t.Errorf("/etc/shadow: %v", err)
	}
}
