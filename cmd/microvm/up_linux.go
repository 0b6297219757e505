package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/microvmd/microvm/images"
	"github.com/microvmd/microvm/internal/artifact"
	"github.com/microvmd/microvm/internal/machine"
	"github.com/microvmd/microvm/internal/posture"
	"github.com/microvmd/microvm/packaging"
)

func init() {
	machineFiles = func(ctx context.Context) ([]machine.File, error) {
		return newPreparation(os.Stderr, false, nil).files(ctx)
	}
}

func newUpCommand() *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring up a host on this machine and run a first sandbox",
		Long: `Brings up everything that a first sandbox needs, says what it is doing, and runs
one.

Where a timed probe boot shows that KVM works with hardware virtualisation, this
machine itself becomes the host: artifacts go to /var/lib/microvm, programs to
/usr/local/bin, and microvmd runs under systemd. Elsewhere an emulated host is
started (see "microvm machine"): slow, but the same code path.

It is safe to repeat: what is there already is kept, and an --image is added.`,
		Example: `  microvm up
  microvm up --image go --image node`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return up(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringSliceVar(&o.images, "image", nil, "image to bring beside python and base; may be repeated")
	cmd.Flags().BoolVar(&o.emulated, "emulated", false, "use the emulated host although this machine has KVM")
	cmd.Flags().BoolVar(&o.unsupported, "allow-unsupported-firecracker", false, "on a real host, take a Firecracker that gets no security fixes any more")
	return cmd
}

type upOptions struct {
	images                []string
	emulated, unsupported bool
}

func newDownCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop what \"microvm up\" started",
		Long: `Stops the emulated host, or microvmd on this machine. Sandboxes end with it;
images and what was built stay.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return down(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
}

func up(ctx context.Context, o upOptions, out, errs io.Writer) error {
	if os.Geteuid() != 0 {
		return hint(errors.New("up: needs root"), "repeat with sudo")
	}
	began := time.Now()
	here := false
	if !o.emulated {
		report := posture.KVM(ctx, posture.KVMProbe{})
		here = report.Verdict == posture.Hardware
		say(errs, "KVM on this machine: %s (%s)\n", report.Verdict, report.Detail)
	}
	// Artifacts are prepared while the host's own parts are.
	prepare := newPreparation(errs, here && !o.unsupported, o.images)
	prepare.begin(ctx)
	var err error
	if here {
		say(errs, "This machine is the host.\n")
		err = upHere(ctx, prepare, errs)
	} else {
		say(errs, "%s\n", "The host is emulated; its parts, the guest kernel and the images are prepared side by side.")
		err = upEmulated(ctx, prepare, errs)
	}
	if err != nil {
		return err
	}
	say(errs, "The host is up after %.1f s. A first sandbox:\n", time.Since(began).Seconds())
	if err := firstSandbox(ctx, out, errs); err != nil {
		return err
	}
	say(errs, "\nDone in %.1f s. What next:\n", time.Since(began).Seconds())
	self, doctor := os.Args[0], "doctor" // as it was called: it may not be in the PATH
	if !here {
		doctor = "machine shell -- microvm doctor"
	}
	for _, line := range [][2]string{
		{self + " run python -- python3 -c 'print(6 * 7)'", "one program in a sandbox of its own"},
		{self + " sandbox create python --name work", "a sandbox to keep"},
		{self + " exec work -- python3 --version", "run in it"},
		{self + " " + doctor, "what the host is short of"},
		{"make test", "prove it all"},
	} {
		say(errs, "  %-52s %s\n", line[0], line[1])
	}
	return nil
}

// preparation gets the artifacts that every host runs on.
type preparation struct {
	log       io.Writer
	supported bool     // only a Firecracker that gets security fixes
	images    []string // beside those that every host has
	done      chan struct{}
	got       []artifact.Artifact // set before done is closed
	err       error               // set before done is closed
}

func newPreparation(log io.Writer, supported bool, images []string) *preparation {
	return &preparation{log: log, supported: supported, images: images}
}

// begin starts to prepare; wait returns what came of it.
func (p *preparation) begin(ctx context.Context) {
	p.done = make(chan struct{})
	go func() {
		defer close(p.done)
		p.got, p.err = p.ensure(ctx)
	}()
}

func (p *preparation) wait(ctx context.Context) ([]artifact.Artifact, error) {
	if p.done == nil {
		p.begin(ctx)
	}
	<-p.done
	return p.got, p.err
}

func (p *preparation) ensure(ctx context.Context) ([]artifact.Artifact, error) {
	sources, err := artifact.ParseSources(os.Getenv("MICROVM_SOURCES"))
	if err != nil {
		return nil, usage("MICROVM_SOURCES: %w", err)
	}
	cache, err := cacheDir("")
	if err != nil {
		return nil, err
	}
	printer := artifact.NewPrinter(p.log)
	defer printer.Close()
	store, err := artifact.Open(cache, artifact.Options{
		Sources: sources, SupportedOnly: p.supported, Recipes: images.Recipes, Progress: printer.Progress,
	})
	if err != nil {
		return nil, err
	}
	names, err := artifactNames(store, append([]string{"python", "base"}, p.images...))
	if err != nil {
		return nil, fmt.Errorf("up: %w", err)
	}
	return ensure(ctx, store, p.log, names...)
}

// files is what goes into the emulated host.
func (p *preparation) files(ctx context.Context) ([]machine.File, error) {
	got, err := p.wait(ctx)
	if err != nil {
		return nil, err
	}
	var files []machine.File
	for _, a := range got {
		for _, f := range artifact.StatePaths(a) {
			files = append(files, machine.File{Src: f.Src, Dst: path.Join(defaultStateDir, f.Dst), Mode: f.Mode})
		}
	}
	return files, nil
}

func upEmulated(ctx context.Context, prepare *preparation, errs io.Writer) error {
	cfg := machineConfig(machine.DefaultName, errs)
	cfg.Files = prepare.files
	m, err := machine.Open(cfg)
	if err != nil {
		return err
	}
	started, err := m.Start(ctx)
	if err != nil {
		return err
	}
	if !started.Already {
		say(errs, "The emulated host booted in %.1f s.\n", started.BootToSSH.Seconds())
	}
	return nil
}

// upHere makes this machine the host.
func upHere(ctx context.Context, prepare *preparation, errs io.Writer) error {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return hint(errors.New("up: this machine has KVM, but systemd does not run, so microvmd cannot be started for you"),
			"microvm setup, then start microvmd with --cgroup-root of a cgroup v2 directory that is its alone; or: microvm up --emulated")
	}
	got, err := prepare.wait(ctx)
	if err != nil {
		return err
	}
	if err := artifact.Install(ctx, defaultStateDir, got); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	from := filepath.Dir(self)
	changed := false
	for _, p := range []struct{ src, dst string }{
		{filepath.Join(from, "microvmd"), "/usr/local/bin/microvmd"},
		{filepath.Join(from, "microvm"), "/usr/local/bin/microvm"},
		{filepath.Join(from, "guestd"), filepath.Join(defaultStateDir, "guest", "guestd")},
	} {
		content, err := os.ReadFile(p.src)
		if err != nil {
			return hint(fmt.Errorf("up: install programs: %w", err), "make build")
		}
		if changed, err = placeFile(p.dst, content, 0o755, changed); err != nil {
			return err
		}
	}
	units, err := packaging.Units.ReadDir(".")
	if err != nil {
		return err
	}
	for _, unit := range units {
		content, err := packaging.Units.ReadFile(unit.Name())
		if err != nil {
			return err
		}
		if changed, err = placeFile(filepath.Join("/etc/systemd/system", unit.Name()), content, 0o644, changed); err != nil {
			return err
		}
	}
	verb := "start"
	if changed {
		verb = "restart"
	}
	for _, args := range [][]string{{"daemon-reload"}, {"enable", "--quiet", "microvm-sandboxes.service", "microvmd.service"}, {verb, "microvmd.service"}} {
		systemctl := exec.CommandContext(ctx, "systemctl", args...)
		systemctl.Stderr = errs
		if err := systemctl.Run(); err != nil {
			return hint(fmt.Errorf("up: systemctl %s: %w", args[0], err), "journalctl -u microvmd")
		}
	}
	return nil
}

// placeFile writes a file whole, unless it is as wanted already.
func placeFile(name string, content []byte, mode fs.FileMode, changed bool) (bool, error) {
	if have, err := os.ReadFile(name); err == nil && slices.Equal(have, content) {
		return changed, nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return changed, err
	}
	draft := name + ".new"
	if err := os.WriteFile(draft, content, mode); err != nil {
		return changed, err
	}
	if err := os.Chmod(draft, mode); err != nil {
		return changed, err
	}
	return true, os.Rename(draft, name)
}

// firstSandbox does the main job through the command line, as its user would.
func firstSandbox(ctx context.Context, out, errs io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "microvm-up-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "main.py")
	program := "import platform\nprint('Hello from', platform.node(), 'on kernel', platform.release(), 'with Python', platform.python_version())\n"
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		return err
	}
	args := []string{"run", "python", "--timings", "--verbose", "--file", file, "--", "python3", "main.py"}
	say(errs, "%s\n", "$ microvm run python --timings --file main.py -- python3 main.py")
	run := exec.CommandContext(ctx, self, args...)
	run.Stdout, run.Stderr = out, errs
	if err := run.Run(); err != nil {
		return hint(fmt.Errorf("up: the first sandbox: %w", err), "microvm machine logs --daemon, or journalctl -u microvmd")
	}
	say(errs, "%s\n", "exit code 0")
	return nil
}

func down(ctx context.Context, out, errs io.Writer) error {
	m, err := machine.Open(machineConfig(machine.DefaultName, errs))
	if err != nil {
		return err
	}
	was, err := m.Stop(ctx)
	if err != nil {
		return err
	}
	if was {
		say(out, "%s\n", "The emulated host is stopped.")
		return nil
	}
	if exec.CommandContext(ctx, "systemctl", "is-active", "--quiet", "microvmd.service").Run() == nil {
		// The second unit holds the sandboxes, which would go on without the daemon.
		if err := exec.CommandContext(ctx, "systemctl", "stop", "microvmd.service", "microvm-sandboxes.service").Run(); err != nil {
			return hint(fmt.Errorf("down: stop microvmd: %w", err), "repeat with sudo")
		}
		say(out, "%s\n", "microvmd and its sandboxes are stopped.")
		return nil
	}
	say(out, "%s\n", "Nothing runs.")
	return nil
}
