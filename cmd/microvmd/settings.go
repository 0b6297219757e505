package main

import (
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/microvmd/microvm/internal/daemon"
)

// settings is what microvmd is told. Its flags are the one list of settings: the
// keys of the configuration file are their names.
type settings struct {
	daemon.Config
	logLevel, logFormat string

	flags *pflag.FlagSet // set the fields above
	level slog.Level     // what logLevel says
	// hidden are the keys of the file that a flag or the environment overrides.
	hidden []string
}

// variables are the settings that the environment may hold.
var variables = map[string]string{"config": "MICROVM_CONFIG", "database": "MICROVM_DATABASE"}

// live are the settings that a running daemon takes over from the file: what
// daemon.Reload may change, and the log's level.
var live = []string{
	"boot-timeout", "boot-turn", "disk-mib", "drain", "log-level", "max-mem-mib", "max-ttl", "max-vcpus", "mem-mib",
	"slots", "stall-timeout", "step-timeout", "templates", "vcpus",
}

// newSettings returns the defaults for this host.
func newSettings() *settings {
	s := &settings{Config: daemon.Defaults(runtime.NumCPU(), hostMemMiB()), flags: pflag.NewFlagSet("microvmd", pflag.ContinueOnError)}
	f := s.flags
	f.StringVar(&s.Instance, "instance", s.Instance, "name of this daemon in all it makes on the host; two daemons need two")
	f.StringVar(&s.StateDir, "state-dir", s.StateDir, "directory of images, jails, disks and the database; one file system")
	f.StringVar(&s.Database, "database", "", `postgres:// URL of the database, without a password; "" is an SQLite file in the state directory (default $`+variables["database"]+`)`)
	f.StringVar(&s.Socket, "socket", s.Socket, "Unix socket of the API, for root")
	f.StringVar(&s.Listen, "listen", s.Listen, `TCP address of the API; "" is none`)
	f.StringVar(&s.CgroupRoot, "cgroup-root", s.CgroupRoot, "cgroup v2 directory that is the daemon's alone")
	f.StringVar(&s.NetnsDir, "netns-dir", s.NetnsDir, "directory in which network namespaces are pinned")
	f.IntVar(&s.UIDBase, "uid-base", s.UIDBase, "slot n's VMM runs as this uid plus n")
	f.BoolVar(&s.AllowUnsupportedFirecracker, "allow-unsupported-firecracker", false, "start although this Firecracker release gets no security fixes any more")
	f.BoolVar(&s.DebugVMM, "debug-vmm", false, "keep what guest consoles, jailers and VMMs print and add it to errors; boots become much slower")
	f.Int64Var(&s.MaxBodyBytes, "max-body-bytes", s.MaxBodyBytes, "size of a JSON body; files that are streamed have no bound")
	f.IntVar(&s.OutputMiB, "output-mib", s.OutputMiB, "kept output of all executions, MiB; beyond it the oldest goes, of the sandbox that has most")
	f.IntVar(&s.BoxOutputMiB, "sandbox-output-mib", s.BoxOutputMiB, "kept output of one sandbox's executions, MiB; beyond it the oldest goes")
	f.IntVar(&s.ImageMiB, "image-mib", s.ImageMiB, "contents of one imported tree, MiB")
	f.IntVar(&s.ImageMembers, "image-members", s.ImageMembers, "files, directories, links and devices of one imported tree; each takes some 1200 bytes of memory during the import")
	f.IntVar(&s.MaxConns, "max-conns", s.MaxConns, "TCP connections at once; others wait")
	f.IntVar(&s.Limits.Slots, "slots", s.Limits.Slots, "sandboxes at once")
	f.IntVar(&s.Limits.VCPUs, "vcpus", s.Limits.VCPUs, "vCPUs of all sandboxes together")
	f.IntVar(&s.Limits.MemMiB, "mem-mib", s.Limits.MemMiB, "memory of all sandboxes together, MiB")
	f.IntVar(&s.Limits.MaxVCPUs, "max-vcpus", s.Limits.MaxVCPUs, "vCPUs of one sandbox, 1 to 32")
	f.IntVar(&s.Limits.MaxMemMiB, "max-mem-mib", s.Limits.MaxMemMiB, "memory of one sandbox, MiB; 0 is all of mem-mib")
	f.DurationVar(&s.Limits.MaxTTL, "max-ttl", s.Limits.MaxTTL, "longest life of one sandbox")
	f.IntVar(&s.Limits.ScratchMiB, "scratch-mib", s.Limits.ScratchMiB, "size of each sandbox's disk, MiB; sparse")
	f.IntVar(&s.Limits.DiskMiB, "disk-mib", s.Limits.DiskMiB, "disks of all sandboxes together, MiB; 0 is slots times scratch-mib")
	f.IntVar(&s.Limits.Templates, "templates", s.Limits.Templates, "snapshots of untouched microVMs to restore from, each of one image and shape; 0: every create boots")
	f.IntVar(&s.Limits.BootsAtOnce, "boots-at-once", s.Limits.BootsAtOnce, "microVMs that boot at the same time; further creates wait their turn")
	f.DurationVar(&s.Limits.BootTurn, "boot-turn", s.Limits.BootTurn, "after which a boot that is not over lets the next one begin")
	f.DurationVar(&s.Limits.BootTimeout, "boot-timeout", s.Limits.BootTimeout, "from a create's first step to a usable sandbox, however much it gets on")
	f.DurationVar(&s.Limits.StallTimeout, "stall-timeout", s.Limits.StallTimeout, "without any progress after which a microVM that comes up counts as hung")
	f.DurationVar(&s.Limits.StepTimeout, "step-timeout", s.Limits.StepTimeout, "of each step of a teardown, and of a file transfer that stands still")
	f.DurationVar(&s.Limits.ReconcileEvery, "reconcile-every", s.Limits.ReconcileEvery, "how often what is on the host is compared with what should be there")
	f.BoolVar(&s.Drain, "drain", false, "end all sandboxes when the daemon stops, rather than leave them to its next start")
	f.DurationVar(&s.AgentTimeout, "agent-timeout", s.AgentTimeout, "silence of a guest agent after which its sandbox is ended")
	f.DurationVar(&s.KillTimeout, "kill-timeout", s.KillTimeout, "how long the end of a timed-out program may stay unconfirmed before its sandbox is ended")
	f.DurationVar(&s.StoppedRetain, "stopped-retain", s.StoppedRetain, "how long a stopped sandbox and its output stay readable")
	f.StringVar(&s.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&s.logFormat, "log-format", "text", "text or json")
	for _, name := range live {
		f.Lookup(name).Usage += " [live]"
	}
	return s
}

// complete checks what daemon.Run does not.
func (s *settings) complete() error {
	if err := s.level.UnmarshalText([]byte(s.logLevel)); err != nil {
		return fmt.Errorf("log-level is %q and must be debug, info, warn or error", s.logLevel)
	}
	if s.logFormat != "text" && s.logFormat != "json" {
		return fmt.Errorf("log-format is %q and must be text or json", s.logFormat)
	}
	return nil
}

// change is a setting that is another than it was.
type change struct{ name, from, to string }

func (c change) isLive() bool { return slices.Contains(live, c.name) }

// changes compares with what is to come, in the order of names.
func (s *settings) changes(next *settings) (all []change) {
	s.flags.VisitAll(func(f *pflag.Flag) {
		if from, to := f.Value.String(), next.flags.Lookup(f.Name).Value.String(); from != to {
			all = append(all, change{f.Name, from, to})
		}
	})
	return all
}

func hostMemMiB() int {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return 1024 // the least on which a node makes sense
	}
	return int(info.Totalram * uint64(info.Unit) >> 20) //nolint:gosec // MiB of RAM fit an int
}
