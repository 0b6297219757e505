package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/microvmd/microvm/internal/bench"
	"github.com/microvmd/microvm/internal/posture"
	microvm "github.com/microvmd/microvm/sdk/go"
)

func newBenchCommand() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure this host's figures, each beside its floor",
		Long: `Measures what a sandbox costs beyond the least that it could cost. Each figure
stands beside its floor: the same work by a bare jailer and Firecracker, or by a
bare loop in the guest, in the same run and in turns. The ratio holds on any
host; the times are this host's alone.

It runs on the daemon's host, as root, and wants a host that does nothing else.
In an emulated host: microvm machine shell -- microvm bench

What it makes it removes, also after Ctrl-C. Figures: ` + strings.Join(bench.Names, ", ") + `.`,
		Example: `  microvm bench
  microvm bench --runs 30 --only cold-create
  microvm bench -o json > figures.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runBench(cmd, o)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&o.runs, "runs", 10, "rounds of each figure, after one that does not count")
	flags.StringSliceVar(&o.only, "only", nil, "measure only this figure; may be repeated")
	flags.StringVar(&o.image, "image", "python", "image of every microVM")
	flags.StringVar(&o.stateDir, "state-dir", defaultStateDir, "the daemon's state directory")
	flags.StringVar(&o.cgroupRoot, "cgroup-root", "/sys/fs/cgroup/microvm.slice/microvm-sandboxes.service", "the daemon's cgroup root")
	flags.StringVar(&o.netnsDir, "netns-dir", "/run/microvm/netns", "the daemon's directory of network namespaces")
	must(cmd.RegisterFlagCompletionFunc("only", cobra.FixedCompletions(bench.Names, cobra.ShellCompDirectiveNoFileComp)))
	cmd.AddCommand(&cobra.Command{
		Use:    bench.FloorArgs[1],
		Short:  "The floor of an execution; runs in a guest",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(*cobra.Command, []string) error { return bench.GuestFloor() },
	})
	return cmd
}

type benchOptions struct {
	runs                                  int
	only                                  []string
	image, stateDir, cgroupRoot, netnsDir string
}

const benchElsewhere = "run it as root on the daemon's host; in an emulated host: microvm machine shell -- microvm bench"

func runBench(cmd *cobra.Command, o benchOptions) error {
	if os.Geteuid() != 0 {
		return hint(errors.New("bench: needs root"), benchElsewhere)
	}
	socket := os.Getenv("MICROVM_SOCKET")
	if socket == "" {
		socket = defaultSocket
	}
	if err := knock(socket); err != nil {
		return hint(fmt.Errorf("bench: no daemon on this machine: %w", err), benchElsewhere)
	}
	if _, err := os.Stat(o.cgroupRoot); err != nil {
		return hint(fmt.Errorf("bench: no cgroup of the daemon: %w", err), "give the daemon's --cgroup-root")
	}
	verbose, _ := cmd.Flags().GetBool("verbose") // absent in a tree without it
	progress := io.Discard
	if verbose || onTerminal(cmd.ErrOrStderr()) {
		progress = cmd.ErrOrStderr()
	}
	ctx := cmd.Context()
	report, err := bench.Run(ctx, bench.Config{
		Client:      microvm.New(microvm.WithSocket(socket)),
		StateDir:    o.stateDir,
		CgroupMount: "/sys/fs/cgroup",
		CgroupRoot:  o.cgroupRoot,
		NetnsDir:    o.netnsDir,
		Image:       o.image,
		Rounds:      o.runs,
		Only:        o.only,
		KVM:         string(posture.KVM(ctx, posture.KVMProbe{Device: kvmDevice}).Verdict),
		Version:     ownVersion(),
		Progress:    progress,
	})
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if outputFormat(cmd) == string(outputJSON) {
		return printJSON(cmd.OutOrStdout(), report)
	}
	return printAll(cmd.OutOrStdout(), report.Table())
}
