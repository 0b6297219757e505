package daemon

import (
	"net"
	"path/filepath"
	"regexp"
	"testing"
	"time"
)

func TestNotify(t *testing.T) {
	for _, socket := range []string{filepath.Join(t.TempDir(), "s"), "@microvm-test-notify"} {
		manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		defer manager.Close()
		for state, want := range map[string]string{
			ready: "^READY=1$", stopping: "^STOPPING=1$", reloading(): "^RELOADING=1\nMONOTONIC_USEC=[0-9]{4,}$",
		} {
			if err := notify(socket, state); err != nil {
				t.Fatal(err)
			}
			_ = manager.SetReadDeadline(time.Now().Add(time.Minute))
			text := make([]byte, 256)
			n, err := manager.Read(text)
			if err != nil || !regexp.MustCompile(want).Match(text[:n]) {
				t.Errorf("%s: got %q, %v", socket, text[:n], err)
			}
		}
	}
	if err := notify("", ready); err != nil {
		t.Errorf("nobody to tell: %v", err)
	}
	if err := notify(filepath.Join(t.TempDir(), "none"), ready); err == nil {
		t.Error("a socket that is not there")
	}
}
