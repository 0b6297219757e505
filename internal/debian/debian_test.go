package debian

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeApt puts an apt-get first on PATH that notes its calls, fails its first
// install, and brings the program that is asked for.
func fakeApt(t *testing.T, script string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "apt-get"), []byte("#!/bin/sh\necho \"$*\" >> "+dir+"/calls\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return dir
}

func calls(t *testing.T, dir string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "calls"))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

func TestNothingIsInstalledWhenAllIsThere(t *testing.T) {
	dir := fakeApt(t, "exit 1")
	err := Need(t.Context(), func(s string) { t.Error(s) }, Package{Name: "dash", Program: "sh"}, Package{Name: "base-files", File: "/etc"})
	if err != nil || calls(t, dir) != nil {
		t.Fatal(err, calls(t, dir))
	}
}

func TestOldListsAreRenewed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root, as make test does: Need refuses anybody else")
	}
	dir := fakeApt(t, `case "$*" in
*update*) touch "`+"$(dirname \"$0\")"+`/updated" ;;
*) test -e "$(dirname "$0")/updated" && printf '#!/bin/sh\n' > "$(dirname "$0")/wanted-program" && chmod 755 "$(dirname "$0")/wanted-program" ;;
esac`)
	var said []string
	err := Need(t.Context(), func(s string) { said = append(said, s) }, Package{Name: "dash", Program: "sh"}, Package{Name: "wanted", Program: "wanted-program"})
	if err != nil || len(said) != 1 || !strings.HasSuffix(said[0], ": wanted") {
		t.Fatal(err, said)
	}
	got := calls(t, dir)
	if len(got) != 3 || !strings.Contains(got[1], "update") || !strings.HasSuffix(got[2], " wanted") || !strings.Contains(got[2], "--no-install-recommends") {
		t.Fatalf("%q", got)
	}
}

func TestAFailureSaysWhatAptSaid(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root, as make test does: Need refuses anybody else")
	}
	fakeApt(t, "echo 'E: disk is full' >&2; exit 100")
	err := Need(context.Background(), func(string) {}, Package{Name: "wanted", Program: "no-such-program"})
	if err == nil || !strings.Contains(err.Error(), "disk is full") || !strings.Contains(err.Error(), "wanted") {
		t.Fatal(err)
	}
}
