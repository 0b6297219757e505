package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/microvmd/microvm/images"
	"github.com/microvmd/microvm/internal/artifact"
	"github.com/microvmd/microvm/internal/debian"
)

// defaultStateDir is where the daemon keeps images, jails and its database.
const defaultStateDir = "/var/lib/microvm"

// cacheDir says where artifacts and the roots of emulated hosts are kept: flag,
// $MICROVM_CACHE, or the user's cache folder.
func cacheDir(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if dir := os.Getenv("MICROVM_CACHE"); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache: %w; set MICROVM_CACHE", err)
	}
	return filepath.Join(dir, "microvm"), nil
}

type setupOptions struct {
	cache, stateDir, sources string
	images                   []string
	onlyCache, unsupported   bool
}

func newSetupCommand() *cobra.Command {
	var o setupOptions
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Get Firecracker, the guest kernel and images, and install them for the daemon",
		Long: `Gets what Microvm runs on, checks it, and installs it for the daemon.

Firecracker and its jailer come from the project's release page, or, where only
package registries are reachable, as an older release out of a Python package.
The guest kernel and the images are built from Debian's packages. All of it is
kept in the cache (--cache, $MICROVM_CACHE, or ~/.cache/microvm), so that a
second run takes seconds. --sources or $MICROVM_SOURCES restricts where things
may come from.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runSetup(cmd.Context(), o, outputFormat(cmd), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.cache, "cache", "", "cache directory (default $MICROVM_CACHE, or ~/.cache/microvm)")
	flags.StringVar(&o.stateDir, "state-dir", defaultStateDir, "the daemon's state directory")
	flags.StringVar(&o.sources, "sources", os.Getenv("MICROVM_SOURCES"), "comma list of cache, release, package, build (default $MICROVM_SOURCES, or all)")
	flags.StringSliceVar(&o.images, "image", []string{"python", "base"}, "image to prepare; may be repeated")
	flags.BoolVar(&o.onlyCache, "only-cache", false, "fill the cache and install nothing")
	flags.BoolVar(&o.unsupported, "allow-unsupported-firecracker", false, "install a Firecracker that gets no security fixes any more")
	return cmd
}

// outputFormat reads the root command's -o; without one it is a table.
func outputFormat(cmd *cobra.Command) string {
	format, err := cmd.Flags().GetString("output")
	if err != nil || format == "" {
		return "table"
	}
	return format
}

func runSetup(ctx context.Context, o setupOptions, format string, out, errs io.Writer) error {
	// What cannot succeed is refused before minutes of building.
	if !o.onlyCache && os.Geteuid() != 0 {
		return hint(fmt.Errorf("setup %s: needs root", o.stateDir), "repeat with sudo, or with --only-cache to fill the cache only")
	}
	if !o.onlyCache && !filepath.IsAbs(o.stateDir) {
		return usage("--state-dir %q must be absolute", o.stateDir)
	}
	sources, err := artifact.ParseSources(o.sources)
	if err != nil {
		return usage("--sources: %w", err)
	}
	cache, err := cacheDir(o.cache)
	if err != nil {
		return err
	}
	printer := artifact.NewPrinter(errs)
	store, err := artifact.Open(cache, artifact.Options{
		Sources:       sources,
		SupportedOnly: !o.onlyCache && !o.unsupported,
		Recipes:       images.Recipes,
		Progress:      printer.Progress,
	})
	if err != nil {
		printer.Close()
		return fmt.Errorf("setup: %w", err)
	}
	names, err := artifactNames(store, o.images)
	if err != nil {
		printer.Close()
		return fmt.Errorf("setup: %w", err)
	}
	got, err := ensure(ctx, store, errs, names...)
	printer.Close()
	if err != nil {
		return hint(fmt.Errorf("setup: %w", err), setupAdvice(err, o))
	}
	if !o.onlyCache {
		if err := artifact.Install(ctx, o.stateDir, got); err != nil {
			return fmt.Errorf("setup: %w", err)
		}
	}
	return printSetup(got, o, format, out)
}

// artifactNames is what a host with these images is made of.
func artifactNames(store *artifact.Store, images []string) ([]string, error) {
	names := []string{"firecracker", "guest-kernel"}
	for _, image := range images {
		name := "image-" + image
		if !slices.Contains(store.Names(), name) {
			return nil, usage("there is no %s for this machine; there are %s", name, strings.Join(store.Names(), ", "))
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// ensure gets artifacts, after what their recipes need of this machine.
func ensure(ctx context.Context, store *artifact.Store, log io.Writer, names ...string) ([]artifact.Artifact, error) {
	var needed []debian.Package
	for _, name := range names {
		if _, there, err := store.Lookup(name); err != nil || there || !strings.HasPrefix(name, "image-") && name != "guest-kernel" {
			continue // a damaged one is for Ensure to tell
		}
		needed = append(needed, debian.Package{Name: "mmdebstrap", Program: "mmdebstrap"},
			debian.Package{Name: "debian-archive-keyring", File: "/usr/share/keyrings/debian-archive-keyring.gpg"})
		if name == "image-node" {
			needed = append(needed, debian.Package{Name: "npm", Program: "npm"})
		}
	}
	if err := debian.Need(ctx, func(text string) { say(log, "%s\n", text) }, needed...); err != nil {
		return nil, err
	}
	return store.EnsureAll(ctx, names...)
}

// setupAdvice is the next step for an operator whose setup failed.
func setupAdvice(err error, o setupOptions) string {
	var wrong *artifact.ChecksumError
	switch {
	case errors.As(err, &wrong):
		return "the bytes are not the ones that were pinned, and nothing was kept; repeat once, and if it happens again, report it"
	case errors.Is(err, artifact.ErrOlderNotTried):
		return "where the release page cannot be reached, --allow-unsupported-firecracker takes an older Firecracker, without security fixes, from a package registry"
	default:
		return "mend the cause and repeat: what was got so far is in the cache"
	}
}

// setupRow is one line of the result; -o json prints it as it is.
type setupRow struct {
	Artifact  string  `json:"artifact"`
	Version   string  `json:"version"`
	Supported bool    `json:"supported"`
	Source    string  `json:"source"`
	Cached    bool    `json:"cached"`
	SizeBytes int64   `json:"size_bytes"`
	Seconds   float64 `json:"seconds"`
	Word      string  `json:"word"`
	Dir       string  `json:"dir"`
}

func printSetup(got []artifact.Artifact, o setupOptions, format string, out io.Writer) error {
	rows := make([]setupRow, 0, len(got))
	for _, a := range got {
		rows = append(rows, setupRow{
			Artifact: a.Name, Version: a.Version, Supported: a.Supported, Source: string(a.Source), Cached: a.Cached,
			SizeBytes: a.Size(), Seconds: a.Took.Seconds(), Word: a.Word, Dir: a.Dir,
		})
	}
	if format == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(map[string]any{"object": "list", "data": rows})
	}
	table := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "ARTIFACT\tVERSION\tSOURCE\tSIZE\tSECONDS\tCHECKSUM ON THE WORD OF")
	for _, r := range rows {
		source := r.Source
		if r.Cached {
			source = "cache (" + r.Source + ")"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%.1f MiB\t%.1f\t%s\n", r.Artifact, r.Version, source, float64(r.SizeBytes)/(1<<20), r.Seconds, r.Word)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, r := range rows {
		if !r.Supported {
			fmt.Fprintf(out, "\n%s %s is out of support: it gets no security fixes. Use it to try things, not for code that nobody trusts.\n", r.Artifact, r.Version)
		}
	}
	if o.onlyCache {
		fmt.Fprintln(out, "\nThe cache is full; nothing was installed.")
	} else {
		fmt.Fprintf(out, "\nInstalled in %s. Next: microvm doctor\n", o.stateDir)
	}
	return nil
}
