package api

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestGeneratedCodeIsCurrent generates again and compares.
func TestGeneratedCodeIsCurrent(t *testing.T) {
	fresh := t.TempDir()
	if text, err := exec.CommandContext(t.Context(), "./generate.sh", fresh).CombinedOutput(); err != nil {
		t.Fatalf("generate: %v: %s", err, text)
	}
	for _, file := range []string{"internal/httpapi/gen/server.gen.go", "sdk/go/types.gen.go"} {
		want, err := os.ReadFile(filepath.Join(fresh, file))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join("..", file))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what openapi.yaml makes; run api/generate.sh", file)
		}
	}
}
