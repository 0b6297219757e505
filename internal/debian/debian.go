// Package debian installs Debian packages that this machine lacks, and says so.
// It owns nothing but the call of apt-get; what is needed, its callers know.
package debian

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Package is a package and how to see that what it brings is there.
type Package struct {
	Name    string
	Program string // looked up in PATH; "" is none
	File    string // an absolute path; "" is none
}

const (
	lockWait = "300" // seconds to wait for another apt or dpkg
	killWait = 5 * time.Second
	maxLog   = 1 << 10 // bytes of apt-get's words in an error
)

var mu sync.Mutex // one install of ours at a time

// Need installs those of the packages that are missing. Where it may not or
// cannot, the error names them. report is told what is installed.
func Need(ctx context.Context, report func(string), packages ...Package) error {
	mu.Lock()
	defer mu.Unlock()
	names := missing(packages)
	if len(names) == 0 {
		return nil
	}
	list := strings.Join(names, " ")
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("install packages: there is no apt-get here; install these first (Debian's names): %s", list)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("install packages: needs root; run this again with sudo, or first: sudo apt-get install %s", list)
	}
	report("installing missing Debian packages: " + list)
	install := append([]string{"install", "-y", "-qq", "--no-install-recommends"}, names...)
	err := apt(ctx, install...)
	if err != nil { // perhaps the lists are old, or not there
		if err = apt(ctx, "update", "-qq"); err == nil {
			err = apt(ctx, install...)
		}
	}
	if err != nil {
		return fmt.Errorf("install %s: %w", list, err)
	}
	if left := missing(packages); len(left) > 0 {
		return fmt.Errorf("install %s: installed, but what they should bring is not there", strings.Join(left, " "))
	}
	return nil
}

func missing(packages []Package) []string {
	var names []string
	for _, p := range packages {
		var err error
		if p.Program != "" {
			_, err = exec.LookPath(p.Program)
		}
		if p.File != "" {
			_, statErr := os.Stat(p.File)
			err = errors.Join(err, statErr)
		}
		if err != nil && !slices.Contains(names, p.Name) {
			names = append(names, p.Name)
		}
	}
	return names
}

func apt(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-o", "DPkg::Lock::Timeout=" + lockWait}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for us to pass on
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = killWait
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("apt-get %s: %w: %s", args[0], err, bytes.TrimSpace(out[max(0, len(out)-maxLog):]))
	}
	return nil
}
