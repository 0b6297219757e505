package machine

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBoundedLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for range 2 { // the second run moves the first one's aside
		l, err := newBoundedLog(path, 100)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 55 {
			if n, err := l.Write([]byte{byte('a' + i%26), 'x', 'x', 'x', 'x', 'x', '\n'}); n != 7 || err != nil {
				t.Fatal(n, err)
			}
		}
		if _, err := l.Write(bytes.Repeat([]byte("y"), 350)); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]int{path: 35, path + ".1": 100} {
			if text, err := os.ReadFile(name); err != nil || len(text) != want {
				t.Errorf("%s: %d bytes, want %d, %v", name, len(text), want, err)
			}
		}
		if got := l.recent(); len(got) != 55*7+350 {
			t.Errorf("recent: %d bytes", len(got))
		}
	}
}

func TestPanicLines(t *testing.T) {
	console := "booted\r\n[ 9.1] BUG: kernel NULL pointer dereference\r\n[ 9.1] RIP: 0010:svm_vcpu_run\r\n[ 9.2] Kernel panic - not syncing: Fatal exception\r\n[ 9.2] Kernel Offset: disabled\r\n[ 9.3] ---[ end Kernel panic - not syncing: Fatal exception ]---\r\nSeaBIOS\r\n"
	got := panicLines([]byte(console))
	if len(got) != 5 || !strings.Contains(got[0], "BUG:") || !strings.Contains(got[4], "---[ end") {
		t.Errorf("%d lines: %q", len(got), got)
	}
	if got := panicLines([]byte("booted\nBUG: something harmless\n")); got != nil {
		t.Errorf("no panic, but %q", got)
	}
	if got := panicLines([]byte(strings.Repeat("x\n", 200) + "Kernel panic - not syncing: VFS\n" + strings.Repeat("y\n", 200))); len(got) == 0 || len(got) > panicLimit || !strings.Contains(got[0], "VFS") {
		t.Errorf("%d lines", len(got))
	}
}

func TestCPIO(t *testing.T) {
	var out bytes.Buffer
	c := &cpioWriter{w: &out}
	c.add("a", 0o100644, 0, 0, []byte("hello"))
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	want := "070701" + "00000001" + "000081A4" + "00000000" + "00000000" + "00000001" + "00000000" + "00000005" + strings.Repeat("00000000", 4) + "00000002" + "00000000" + "a\x00" + "hello\x00\x00\x00"
	if got := out.String(); !strings.HasPrefix(got, want) || len(got)%4 != 0 || !strings.Contains(got, "TRAILER!!!\x00") {
		t.Errorf("got %q", got)
	}
}
