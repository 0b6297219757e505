package machine

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// tools are what the outer machine must have, each with the Debian package that brings it.
var tools = []struct{ program, file, pkg string }{
	{"mmdebstrap", "", "mmdebstrap"},
	{"mkfs.ext4", "", "e2fsprogs"},
	{"ssh", "", "openssh-client"},
	{"ssh-keygen", "", "openssh-client"},
	{"", "/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring"},
}

// need checks that a machine can be started here, and installs the Debian packages that are missing.
func need(ctx context.Context, p *progress) error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("start emulated host: this machine is %s, and so far only amd64 can build its roots", runtime.GOARCH)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("start emulated host: it needs root (QEMU is put into a root of its own, as nobody): run this again with sudo")
	}
	var missing []string
	for _, t := range tools {
		ok := t.file != "" && exists(t.file)
		if t.program != "" {
			_, err := exec.LookPath(t.program)
			ok = err == nil
		}
		if !ok && (len(missing) == 0 || missing[len(missing)-1] != t.pkg) {
			missing = append(missing, t.pkg)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	names := strings.Join(missing, " ")
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("start emulated host: install these packages first (Debian's names): %s", names)
	}
	p.say("installing missing packages: %s", names)
	return p.step("apt-get install "+names, func() error {
		var log bytes.Buffer
		err := command(ctx, &log, "apt-get", "update", "-qq")
		if err == nil {
			err = command(ctx, &log, "apt-get", append([]string{"install", "-y", "-qq", "--no-install-recommends"}, missing...)...)
		}
		if err != nil {
			return fmt.Errorf("install %s: %w: %s", names, err, bytes.TrimSpace(log.Bytes()[max(0, log.Len()-1024):]))
		}
		return nil
	})
}
