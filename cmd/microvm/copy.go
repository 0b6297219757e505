package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
)

func newCopyCommand(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cp LOCAL SANDBOX:PATH, or microvm cp SANDBOX:PATH LOCAL",
		Short: "Copy a file into or out of a sandbox",
		Long: `Copies one file into a running sandbox, or out of it. SANDBOX is an id or a name;
a PATH that is not absolute is relative to the working directory, and one that
ends in / gets the file's own name. LOCAL is - for standard input or output; one
that has a colon is written as ./LOCAL.

A file appears whole or not at all, on both sides. Permission bits go in with the
file, and not out. Directories cannot be copied in this release: copy a tar file.`,
		Example: `  microvm cp main.py work:
  microvm cp data.csv work:in/data.csv
  microvm cp work:result.json .
  microvm cp work:/var/log/dpkg.log - | tail
  tar c src | microvm cp - work:src.tar`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usage("one source and one target are needed")
			}
			_, _, from := remotePath(args[0])
			_, _, to := remotePath(args[1])
			if from == to {
				return usage("one of source and target must be SANDBOX:PATH, and only one")
			}
			return nil
		},
		ValidArgsFunction: g.completeCopy,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := g.client()
			if err != nil {
				return err
			}
			if ref, remote, ok := remotePath(args[1]); ok {
				return copyIn(cmd, g, client, args[0], ref, remote)
			}
			ref, remote, _ := remotePath(args[0])
			return copyOut(cmd, g, client, ref, remote, args[1])
		},
	}
	return cmd
}

// remotePath splits SANDBOX:PATH. What has a slash before its colon is local.
func remotePath(arg string) (ref, remote string, ok bool) {
	ref, remote, ok = strings.Cut(arg, ":")
	if !ok || ref == "" || strings.Contains(ref, "/") {
		return "", "", false
	}
	return ref, remote, true
}

func copyIn(cmd *cobra.Command, g *globals, client *microvm.Client, local, ref, remote string) error {
	from := cmd.InOrStdin()
	mode := fs.FileMode(0o644)
	if local == "-" {
		if remote == "" || strings.HasSuffix(remote, "/") {
			return usage("standard input needs a name in the sandbox, as in %s:input", ref)
		}
	} else {
		file, bits, err := openRegular(local)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }() // only read
		from, mode = file, bits
		if remote == "" || strings.HasSuffix(remote, "/") {
			remote += filepath.Base(local)
		}
	}
	ctx := cmd.Context()
	id, err := resolve(ctx, client, ref)
	if err != nil {
		return err
	}
	progress := newProgress(cmd.ErrOrStderr(), g.verbose)
	done := progress.wait("the upload of " + clean(local))
	file, err := client.Files.Upload(ctx, id, remote, from, microvm.WithMode(mode))
	done()
	if err != nil {
		return err
	}
	if g.output == outputJSON {
		return printJSON(cmd.OutOrStdout(), file)
	}
	progress.note("%s (%s) is in %s", clean(file.Path), size(file.Size), clean(ref))
	return nil
}

// downloadResult is what cp prints with -o json for a file that came out.
type downloadResult struct {
	Object    string `json:"object"` // "download"
	Sandbox   string `json:"sandbox"`
	Path      string `json:"path"` // in the sandbox, as it was given
	Local     string `json:"local"`
	SizeBytes int64  `json:"size_bytes"`
}

func copyOut(cmd *cobra.Command, g *globals, client *microvm.Client, ref, remote, local string) error {
	if remote == "" || strings.HasSuffix(remote, "/") {
		return hint(usage("%s:%s names no file", ref, remote), "directories cannot be copied in this release: tar them in the sandbox, and copy the tar file")
	}
	if local == "-" && g.output == outputJSON {
		return usage("-o json and - both want standard output")
	}
	if info, err := os.Stat(local); local != "-" && err == nil && info.IsDir() {
		local = filepath.Join(local, path.Base(remote))
	}
	ctx := cmd.Context()
	id, err := resolve(ctx, client, ref)
	if err != nil {
		return err
	}
	progress := newProgress(cmd.ErrOrStderr(), g.verbose)
	done := progress.wait("the download of " + clean(remote))
	n, err := download(ctx, client, id, remote, local, cmd.OutOrStdout())
	done()
	if err != nil {
		return err
	}
	if g.output == outputJSON {
		return printJSON(cmd.OutOrStdout(), downloadResult{"download", id, remote, local, n})
	}
	progress.note("%s (%s) is here", clean(local), size(n))
	return nil
}

func download(ctx context.Context, client *microvm.Client, id, remote, local string, stdout io.Writer) (int64, error) {
	if local == "-" {
		return client.Files.Download(ctx, id, remote, stdout)
	}
	old, err := os.Stat(local)
	if err == nil && !old.Mode().IsRegular() { // a device or a pipe is written to, not replaced
		to, err := os.OpenFile(local, os.O_WRONLY, 0)
		if err != nil {
			return 0, err
		}
		n, err := client.Files.Download(ctx, id, remote, to)
		return n, errors.Join(err, to.Close())
	}
	return replaceFile(local, old, func(to io.Writer) (int64, error) {
		return client.Files.Download(ctx, id, remote, to)
	})
}

// replaceFile writes a file whole or not at all: what stood there before stays
// until everything is on disk. A file that is replaced keeps its permission
// bits; what a link points to is replaced, not the link.
func replaceFile(name string, old fs.FileInfo, write func(io.Writer) (int64, error)) (int64, error) {
	mode := fs.FileMode(0o666) // less the umask
	if old != nil {
		mode = old.Mode().Perm()
		if target, err := filepath.EvalSymlinks(name); err == nil {
			name = target
		}
	}
	partial := filepath.Join(filepath.Dir(name), "."+filepath.Base(name)+"."+rand.Text()[:8]+".part")
	to, err := os.OpenFile(partial, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return 0, err
	}
	n, err := write(to)
	if err == nil && old != nil {
		err = to.Chmod(mode)
	}
	if err == nil {
		err = to.Sync()
	}
	err = errors.Join(err, to.Close())
	if err == nil {
		err = os.Rename(partial, name)
	}
	if err != nil {
		return n, errors.Join(err, os.Remove(partial))
	}
	return n, nil
}

// completeCopy offers sandboxes beside the shell's own file names.
func (g *globals) completeCopy(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 1 || strings.ContainsAny(word, ":/") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	found, _ := g.completeSandboxes(cmd, args, word)
	for i, completion := range found {
		id, about, _ := strings.Cut(completion, "\t")
		found[i] = fmt.Sprintf("%s:\t%s", id, about)
	}
	return found, cobra.ShellCompDirectiveNoSpace
}
