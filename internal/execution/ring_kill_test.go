package execution

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// ringKillEnv tells the child of TestRingSurvivesKill9 which file to write.
const ringKillEnv = "MICROVM_RING_KILL"

// TestRingSurvivesKill9 has a child append, kills it, and looks at the file:
// what was acknowledged is there. The next child goes on where the last one was
// killed.
func TestRingSurvivesKill9(t *testing.T) {
	if path := os.Getenv(ringKillEnv); path != "" {
		appendUntilKilled(t, path)
		return
	}
	path := filepath.Join(t.TempDir(), "ring")
	r, err := CreateRing(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, after := range []int{1, 3, 20, 111, 500} {
		child := exec.CommandContext(t.Context(), exe, "-test.run=^TestRingSurvivesKill9$", "-test.count=1")
		child.Env = append(os.Environ(), ringKillEnv+"="+path)
		var complaint bytes.Buffer
		child.Stderr = &complaint
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		n, total := 0, int64(0)
		for lines.Scan() {
			if total, err = strconv.ParseInt(lines.Text(), 10, 64); err != nil {
				t.Fatal(lines.Text(), complaint.String())
			}
			if n++; n == after {
				if err := child.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := child.Wait(); err == nil || n < after {
			t.Fatalf("child ended by itself after %d: %v: %s", n, err, complaint.String())
		}
		if r, err = OpenRing(path); err != nil {
			t.Fatal(err)
		}
		got, err := readAll(r, 100_000)
		if err != nil {
			t.Fatal(err)
		}
		if r.Total() < total || len(got) != 1 || got[0].from != max(0, r.Total()-RingBytes) || got[0].to != r.Total() {
			t.Fatalf("acknowledged to %d, has %v, total %d", total, got, r.Total())
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func appendUntilKilled(t *testing.T, path string) {
	r, err := OpenRing(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := int64(1); ; n = n*7%50_021 + 1 {
		from := r.Total()
		if err := r.Append(max(0, from-10), streamBytes(max(0, from-10), from+n)); err != nil {
			t.Fatal(err)
		}
		fmt.Println(r.Total())
	}
}
