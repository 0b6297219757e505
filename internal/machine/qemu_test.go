package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestQEMUArgs(t *testing.T) {
	got := strings.Join(qemuArgs(launch{Name: "default", Boot: "/vm/host-1", Settings: Settings{MemoryMiB: 6144, Cores: 2, SSHPort: 2222, APIPort: 7081}}), "\n") + "\n"
	golden := filepath.Join("testdata", "qemu.args")
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("QEMU's arguments differ from %s; they are:\n%s", golden, got)
	}
}

// Whatever else changes: the network lets nothing out, and forwards from loopback only.
func TestQEMUNetworkIsClosed(t *testing.T) {
	args := qemuArgs(launch{Name: "n", Settings: Settings{SSHPort: 1, APIPort: 2}})
	networks := 0
	for i, a := range args {
		if a != "-netdev" {
			continue
		}
		networks++
		for _, option := range strings.Split(args[i+1], ",") {
			if strings.HasPrefix(option, "hostfwd=") && !strings.HasPrefix(option, "hostfwd=tcp:127.0.0.1:") {
				t.Errorf("forward from elsewhere: %s", option)
			}
		}
		if !strings.Contains(args[i+1], ",restrict=on,") {
			t.Errorf("network is open: %s", args[i+1])
		}
	}
	if networks != 1 {
		t.Errorf("%d networks", networks)
	}
}

func TestSSHArgsUseNothingOfTheUsers(t *testing.T) {
	got := " " + strings.Join(sshArgs("default", 2222), " ") + " "
	for _, want := range []string{" -F none ", " StrictHostKeyChecking=yes ", " GlobalKnownHostsFile=none ", " IdentityAgent=none ", " IdentitiesOnly=yes ", " ControlPath=./ssh.sock ", " -p 2222 "} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
}

func TestQuote(t *testing.T) {
	if got, want := quote([]string{"a b", "", `it's`, "$x"}), `'a b' '' 'it'\''s' '$x'`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
