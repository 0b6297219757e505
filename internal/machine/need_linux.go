package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/microvmd/microvm/internal/debian"
)

// tools are what the outer machine must have.
var tools = []debian.Package{
	{Name: "mmdebstrap", Program: "mmdebstrap"},
	{Name: "e2fsprogs", Program: "mkfs.ext4"},
	{Name: "openssh-client", Program: "ssh"},
	{Name: "debian-archive-keyring", File: "/usr/share/keyrings/debian-archive-keyring.gpg"},
}

// need checks that a machine can be started here, and installs the Debian packages that are missing.
func need(ctx context.Context, p *progress) error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("start emulated host: this machine is %s, and so far only amd64 can build its roots", runtime.GOARCH)
	}
	if os.Geteuid() != 0 {
		return errors.New("start emulated host: it needs root (QEMU is put into a root of its own, as nobody): run this again with sudo")
	}
	if err := debian.Need(ctx, func(text string) { p.say("%s", text) }, tools...); err != nil {
		return fmt.Errorf("start emulated host: %w", err)
	}
	return nil
}
