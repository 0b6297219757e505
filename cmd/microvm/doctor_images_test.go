package main

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/microvmd/microvm/internal/posture"
)

// TestDoctorHashesImportedImages: those of set-up have records, and are not its.
func TestDoctorHashesImportedImages(t *testing.T) {
	state := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(state, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(state, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sum := sha256.Sum256([]byte("tree"))
	digest := hex.EncodeToString(sum[:])
	file := "images/mine/rootfs-" + digest + ".ext4"
	write("images/python/image.json", `{"id":"python","digest":"sha256:00","format":"erofs"}`)
	write("images/mine/image.json", `{"id":"mine","digest":"sha256:`+digest+`","format":"ext4","source":"imported"}`)
	for _, c := range []struct {
		content string
		status  posture.Status
		read    string
	}{{"tree", posture.OK, "1 files as recorded"}, {"tree!", posture.Fail, "wanted " + digest}} {
		write(file, c.content)
		got := checkImported(state)
		if len(got) != 1 || got[0].ID != "artifact-image-mine" || got[0].Status != c.status || !strings.Contains(got[0].Read, c.read) {
			t.Errorf("%q: %+v", c.content, got)
		}
		if c.status == posture.Fail && !strings.Contains(got[0].Fix, "import its tree again") {
			t.Errorf("fix is %q", got[0].Fix)
		}
	}
	write("images/odd/image.json", "{")
	if got := checkImported(state); len(got) != 2 || got[1].Status != posture.Unknown {
		t.Errorf("%+v", got)
	}
	if got := checkImported(filepath.Join(state, "none")); len(got) > 0 {
		t.Errorf("%+v", got)
	}
}
