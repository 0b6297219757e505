// Command microvmd is the daemon: it owns the sandboxes of one host and serves
// the API. It runs as root. See docs/architecture.md.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/microvmd/microvm/internal/daemon"
)

// version is set by the linker.
var version = "dev"

func main() {
	if err := command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	c := daemon.Defaults(runtime.NumCPU(), hostMemMiB())
	c.Version = version
	var logLevel, logFormat string
	cmd := &cobra.Command{
		Use:   "microvmd",
		Short: "Run untrusted code in microVMs: the daemon",
		Long: `microvmd owns the sandboxes of this host and serves the API on a Unix socket
(root only, no key) and on a TCP address (always with a key).

The first start makes an admin key and puts it into admin.key in the state
directory. What the daemon needs on the host is put there by "microvm setup";
"microvm doctor" says what is missing.`,
		Example: `  microvmd
  microvmd --listen 127.0.0.1:7080 --slots 32 --mem-mib 16384`,
		Args:          cobra.NoArgs,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger, err := newLogger(logLevel, logFormat)
			if err != nil {
				return err
			}
			c.Logger = logger
			if c.Database, err = database(c.Database); err != nil {
				return err
			}
			// The heap is small and guests want the memory: collect early.
			debug.SetGCPercent(50)
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return daemon.Run(ctx, c)
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Instance, "instance", c.Instance, "name of this daemon in all it makes on the host; two daemons need two")
	f.StringVar(&c.StateDir, "state-dir", c.StateDir, "directory of images, jails, disks and the database; one file system")
	f.StringVar(&c.Database, "database", "", `postgres:// URL of the database, without a password; "" is an SQLite file in the state directory (default $`+databaseVariable+`)`)
	f.StringVar(&c.Socket, "socket", c.Socket, "Unix socket of the API, for root")
	f.StringVar(&c.Listen, "listen", c.Listen, `TCP address of the API; "" is none`)
	f.StringVar(&c.CgroupRoot, "cgroup-root", c.CgroupRoot, "cgroup v2 directory that is the daemon's alone")
	f.StringVar(&c.NetnsDir, "netns-dir", c.NetnsDir, "directory in which network namespaces are pinned")
	f.IntVar(&c.UIDBase, "uid-base", c.UIDBase, "slot n's VMM runs as this uid plus n")
	f.BoolVar(&c.AllowUnsupportedFirecracker, "allow-unsupported-firecracker", false, "start although this Firecracker release gets no security fixes any more")
	f.BoolVar(&c.DebugVMM, "debug-vmm", false, "keep what guest consoles, jailers and VMMs print and add it to errors; boots become much slower")
	f.Int64Var(&c.MaxBodyBytes, "max-body-bytes", c.MaxBodyBytes, "size of a JSON body; files that are streamed have no bound")
	f.IntVar(&c.OutputMiB, "output-mib", c.OutputMiB, "kept output of all executions that have ended, MiB; beyond it the oldest goes")
	f.IntVar(&c.MaxConns, "max-conns", c.MaxConns, "TCP connections at once; others wait")
	f.IntVar(&c.Limits.Slots, "slots", c.Limits.Slots, "sandboxes at once")
	f.IntVar(&c.Limits.VCPUs, "vcpus", c.Limits.VCPUs, "vCPUs of all sandboxes together")
	f.IntVar(&c.Limits.MemMiB, "mem-mib", c.Limits.MemMiB, "memory of all sandboxes together, MiB")
	f.IntVar(&c.Limits.MaxVCPUs, "max-vcpus", c.Limits.MaxVCPUs, "vCPUs of one sandbox, 1 to 32")
	f.IntVar(&c.Limits.MaxMemMiB, "max-mem-mib", c.Limits.MaxMemMiB, "memory of one sandbox, MiB; 0 is all of mem-mib")
	f.DurationVar(&c.Limits.MaxTTL, "max-ttl", c.Limits.MaxTTL, "longest life of one sandbox")
	f.IntVar(&c.Limits.ScratchMiB, "scratch-mib", c.Limits.ScratchMiB, "size of each sandbox's disk, MiB; sparse")
	f.IntVar(&c.Limits.DiskMiB, "disk-mib", c.Limits.DiskMiB, "disks of all sandboxes together, MiB; 0 is slots times scratch-mib")
	f.IntVar(&c.Limits.Templates, "templates", c.Limits.Templates, "snapshots of untouched microVMs to restore from, each of one image and shape; 0: every create boots")
	f.IntVar(&c.Limits.BootsAtOnce, "boots-at-once", c.Limits.BootsAtOnce, "microVMs that boot at the same time; further creates wait their turn")
	f.DurationVar(&c.Limits.BootTurn, "boot-turn", c.Limits.BootTurn, "after which a boot that is not over lets the next one begin")
	f.DurationVar(&c.Limits.BootTimeout, "boot-timeout", c.Limits.BootTimeout, "from a create's first step to a usable sandbox, however much it gets on")
	f.DurationVar(&c.Limits.StallTimeout, "stall-timeout", c.Limits.StallTimeout, "without any progress after which a microVM that comes up counts as hung")
	f.DurationVar(&c.Limits.StepTimeout, "step-timeout", c.Limits.StepTimeout, "of each step of a teardown, and of a file transfer that stands still")
	f.DurationVar(&c.Limits.ReconcileEvery, "reconcile-every", c.Limits.ReconcileEvery, "how often what is on the host is compared with what should be there")
	f.BoolVar(&c.Drain, "drain", false, "end all sandboxes when the daemon stops, rather than leave them to its next start")
	f.DurationVar(&c.AgentTimeout, "agent-timeout", c.AgentTimeout, "silence of a guest agent after which its sandbox is ended")
	f.DurationVar(&c.KillTimeout, "kill-timeout", c.KillTimeout, "how long the end of a timed-out program may stay unconfirmed before its sandbox is ended")
	f.DurationVar(&c.StoppedRetain, "stopped-retain", c.StoppedRetain, "how long a stopped sandbox and its output stay readable")
	f.StringVar(&logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&logFormat, "log-format", "text", "text or json")
	cmd.SetContext(context.Background())
	return cmd
}

func newLogger(level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log-level is %q and must be debug, info, warn or error", level)
	}
	options := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(os.Stderr, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(os.Stderr, options)), nil
	}
	return nil, fmt.Errorf("log-format is %q and must be text or json", format)
}

func hostMemMiB() int {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return 1024 // the least on which a node makes sense
	}
	return int(info.Totalram * uint64(info.Unit) >> 20) //nolint:gosec // MiB of RAM fit an int
}
