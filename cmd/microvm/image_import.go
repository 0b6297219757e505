package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
)

func newImageImportCommand(g *globals) *cobra.Command {
	var spec microvm.ImageImport
	var env variables
	cmd := &cobra.Command{
		Use:   "import DIR|FILE|-",
		Short: "Make an image of a root tree",
		Long: `Makes an image of a root tree that anything made: a directory, or a tar of one,
which may be compressed with gzip (- is standard input). The node checks each
member as it comes and refuses the first one that no image can have, by its name;
then nothing is left. The image is there when all of it is on the node's disk, and
its id is printed.

A directory is sent with owners, modes, times, links and file capabilities as they
are on this machine, so a tree that belongs to root takes root to read. It stays on
its file system: what is mounted in it is left out, and named. So are labels that
this machine put on files (SELinux, IMA).

The tree's /etc/passwd must have the user; the working directory is made in each
sandbox where the tree does not have it. The same tree again is no error; another
one under the same name is, unless --replace is given. Sandboxes that run keep what
they were made of.`,
		Example: `  mmdebstrap --variant=minbase trixie ./rootfs && sudo microvm image import ./rootfs --name mine
  podman export "$(podman create docker.io/library/alpine)" | microvm image import - --name alpine
  microvm image import tools.tar.gz --user dev --workdir /src --env LANG=C.UTF-8 --replace`,
		Args: oneArg("DIR, FILE or -"),
		RunE: func(cmd *cobra.Command, args []string) error {
			variables, err := env.env(os.LookupEnv)
			if err != nil {
				return err
			}
			spec.Env = variables
			if spec.Name == "" {
				if spec.Name = nameOfTree(args[0]); spec.Name == "" {
					return usage("--name is missing, and %q gives none", args[0])
				}
			}
			return runImageImport(cmd, g, spec, args[0])
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&spec.Name, "name", "", "id of the image (default: the directory's or file's name without .tar and .gz)")
	flags.StringVar(&spec.User, "user", "", `who runs executions unless told otherwise (default "root")`)
	flags.StringVar(&spec.Workdir, "workdir", "", `where executions start (default "/workspace")`)
	flags.StringVar(&spec.Language, "language", "", "programming language that lists show")
	flags.StringVar(&spec.LanguageVersion, "language-version", "", "its version")
	flags.BoolVar(&spec.Replace, "replace", false, "take the place of an imported image of this name")
	env.add(flags)
	return cmd
}

// nameOfTree is the image's id when nobody gave one.
func nameOfTree(path string) string {
	if path == "-" {
		return ""
	}
	full, err := filepath.Abs(path)
	if err != nil {
		return ""
	}
	name := filepath.Base(full)
	for _, end := range []string{".tgz", ".gz", ".tar"} {
		name = strings.TrimSuffix(name, end)
	}
	return strings.Trim(name, "/.")
}

func runImageImport(cmd *cobra.Command, g *globals, spec microvm.ImageImport, path string) error {
	client, err := g.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	tree, err := openTree(ctx, cmd, path)
	if err != nil {
		return err
	}
	defer func() { _ = tree.Close() }() // read only
	done := newProgress(cmd.ErrOrStderr(), g.verbose).wait(clean(path) + " to be imported")
	image, err := client.Images.Import(ctx, spec, tree)
	done()
	var refused *microvm.Error
	if errors.As(err, &refused) && refused.Code == microvm.ErrorCodeResourceAlreadyExists {
		return hint(err, "choose another --name, or add --replace")
	}
	if err != nil {
		return err
	}
	if g.output == outputJSON {
		return printJSON(cmd.OutOrStdout(), image)
	}
	return printAll(cmd.OutOrStdout(), fmt.Sprintln(clean(image.ID)))
}

// openTree opens a tree as an archive. A directory is packed as it is read.
func openTree(ctx context.Context, cmd *cobra.Command, path string) (io.ReadCloser, error) {
	if path == "-" {
		if onTerminal(cmd.InOrStdin()) {
			return nil, usage("standard input is a terminal, and no archive")
		}
		return io.NopCloser(cmd.InOrStdin()), nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	if !info.IsDir() {
		return file, nil
	}
	_ = file.Close()
	return packTree(ctx, path, func(format string, args ...any) { say(cmd.ErrOrStderr(), "note: "+format+"\n", args...) })
}
