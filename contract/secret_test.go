package contract

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSecretKey: the first start makes it, root-only; the next ones keep it, and
// none goes on with one that others could read.
func TestSecretKey(t *testing.T) {
	d := start(t)
	path := filepath.Join(d.dir, "secret.key")
	first, err := os.ReadFile(path)
	if err != nil || len(first) != 32 {
		t.Fatalf("%d bytes: %v", len(first), err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if code := d.stop(t); code != 0 {
		t.Fatalf("stopped with %d", code)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	out, err := d.command().CombinedOutput()
	if err == nil || !strings.Contains(string(out), path+" has mode 0640") || !strings.Contains(string(out), "chmod 600 it") {
		t.Errorf("a start with a key that the group reads: %v: %s", err, out)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	d.run(t)
	if again, err := os.ReadFile(path); err != nil || string(again) != string(first) {
		t.Errorf("the key changed: %v", err)
	}
}
