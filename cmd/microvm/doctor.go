package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/microvmd/microvm/images"
	"github.com/microvmd/microvm/internal/artifact"
	"github.com/microvmd/microvm/internal/posture"
)

// Exit codes of doctor, which has then printed what it found.
const (
	exitHostFails   = 1 // something fails
	exitHostUnknown = 3 // nothing fails, and something could not be read
)

func newDoctorCommand() *cobra.Command {
	var stateDir, cache string
	var kvmOnly, kvmChild bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this host is short of for running sandboxes",
		Long: `Reads this host and says, for each thing that a sandbox needs, what was read,
what is wanted, and how to get there. Nothing is changed.

KVM is judged by booting a tiny program and timing it, not by its being there.

Exit code: 0 when nothing fails (warnings are printed), 1 when something fails,
3 when nothing fails and something could not be read. With --kvm only the
verdict on KVM is printed, and the exit code is 0 for hardware and 1 for all
else.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if kvmChild {
				return posture.KVMChild(cmd.OutOrStdout(), kvmDevice)
			}
			ctx := cmd.Context()
			if ctx == nil {
				ctx = context.Background()
			}
			kvm := posture.KVM(ctx, posture.KVMProbe{Device: kvmDevice})
			if kvmOnly {
				return doctorKVM(kvm, outputFormat(cmd), cmd.OutOrStdout())
			}
			findings := posture.LiveReader().Host(ctx, stateDir, kvm)
			for _, a := range wantedArtifacts(stateDir, cache) {
				findings = append(findings, a.Check())
			}
			findings = append(findings, checkImported(stateDir)...)
			return printFindings(findings, outputFormat(cmd), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&stateDir, "state-dir", defaultStateDir, "the daemon's state directory")
	flags.StringVar(&cache, "cache", "", "cache directory (default $MICROVM_CACHE, or ~/.cache/microvm)")
	flags.BoolVar(&kvmOnly, "kvm", false, "print only the verdict on KVM: hardware, emulated, unusable, absent or unknown")
	flags.BoolVar(&kvmChild, "kvm-child", false, "run the probe in this process and print its figures")
	_ = flags.MarkHidden("kvm-child") // fails for an unknown flag only
	return cmd
}

const kvmDevice = "/dev/kvm"

func doctorKVM(report posture.KVMReport, format string, out io.Writer) error {
	if format == "json" {
		if err := json.NewEncoder(out).Encode(report); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(out, "%s\n", report.Verdict)
	}
	if report.Verdict != posture.Hardware {
		return &codeError{code: exitHostFails}
	}
	return nil
}

// wantedArtifacts lists what should be installed: what the state directory
// records, and of the rest what the cache has.
func wantedArtifacts(stateDir, cacheFlag string) []posture.Artifact {
	installed, err := artifact.Installed(stateDir)
	if err != nil {
		return []posture.Artifact{{Name: "records", Err: err}}
	}
	found := map[string]posture.Artifact{}
	for _, i := range installed {
		a := posture.Artifact{
			Name: i.Name, Version: i.Version, Supported: i.Supported, Pinned: i.Pinned, Installed: true, Where: "state directory",
		}
		for n, f := range i.Files {
			a.Files = append(a.Files, posture.PinnedFile{Path: filepath.Join(stateDir, filepath.FromSlash(i.Paths[n])), SHA256: f.SHA256})
		}
		found[i.Name] = a
	}
	var all []posture.Artifact
	for _, name := range []string{"firecracker", "guest-kernel", "image-base", "image-python"} {
		a, ok := found[name]
		if !ok {
			a = cachedArtifact(name, cacheFlag)
		}
		all = append(all, a)
	}
	return all
}

func cachedArtifact(name, cacheFlag string) posture.Artifact {
	a := posture.Artifact{Name: name, Where: "cache", Pinned: true}
	dir, err := cacheDir(cacheFlag)
	if err != nil {
		a.Err = err
		return a
	}
	if _, err := os.Stat(dir); err != nil {
		return a // no cache: doctor makes none
	}
	store, err := artifact.Open(dir, artifact.Options{Recipes: images.Recipes})
	if err != nil {
		a.Err = err
		return a
	}
	got, ok, err := store.Lookup(name)
	if err != nil || !ok {
		a.Err = err
		return a
	}
	a.Version, a.Supported = got.Version, got.Supported
	for _, f := range got.Files {
		a.Files = append(a.Files, posture.PinnedFile{Path: filepath.Join(got.Dir, f.Name), SHA256: f.SHA256})
	}
	return a
}

func printFindings(findings []posture.Finding, format string, out io.Writer) error {
	worst := posture.Worst(findings)
	if format == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		err := encoder.Encode(map[string]any{
			"object": "list", "worst": worst, "read_at": time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), "data": findings,
		})
		if err != nil {
			return err
		}
	} else {
		table := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
		fmt.Fprintln(table, "STATUS\tWHAT\tREAD")
		for _, f := range findings {
			fmt.Fprintf(table, "%s\t%s\t%s\n", f.Status, f.ID, f.Read)
		}
		if err := table.Flush(); err != nil {
			return err
		}
		for _, f := range findings {
			if f.Status != posture.OK {
				fmt.Fprintf(out, "\n%s %s\n  wanted: %s\n  fix:    %s\n", f.Status, f.ID, f.Wanted, f.Fix)
			}
		}
	}
	switch worst {
	case posture.Fail:
		return &codeError{code: exitHostFails}
	case posture.Unknown:
		return &codeError{code: exitHostUnknown}
	}
	return nil
}
