package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// copyFlags are the flags of cp.
type copyFlags struct {
	all        bool
	owners     bool
	ignoreFile string
	maxSize    byteSize
}

func newCopyCommand(g *globals) *cobra.Command {
	o := copyFlags{maxSize: 16 << 30}
	cmd := &cobra.Command{
		Use:   "cp SOURCE TARGET",
		Short: "Copy files and directories into or out of a sandbox",
		Long: `Copies a file, or a directory with all that is in it, into a running sandbox or
out of it. One of SOURCE and TARGET is SANDBOX:PATH, with the sandbox's id or name
and a path that is absolute or relative to the working directory. The other is a
path here, or - for standard input or output; one that has a colon is written as
./PATH.

It ends where cp -r would put it: a TARGET that is a directory gets SOURCE beneath
it, under its own name; what is not there yet becomes the copy. Of a SOURCE that
ends in /. (or is . or ..) only the content goes into TARGET. A file's TARGET that
ends in / is a directory. What is there stays, unless something of the copy has
its name. A directory that goes to - comes as a tar archive. Everything is copied,
.git too, but for what --ignore-file says; .microvmignore is microvm run's.

Permission bits, times and symlinks are kept. Links are not followed, but for
SOURCE itself. What goes in belongs to the sandbox's user, and what comes out to
you; --owners keeps the numbers of owners, where you may give files away. FIFOs,
sockets and devices are left out, which is said. A file of 64 MiB and more that
goes in gets the time of its arrival.

Each file appears whole or not at all. A connection that breaks is made again, and
what ended early, also by Ctrl-C, goes on where it was with the same command: what
is there with the same size, time and permission bits is not copied again, and of
large files the part that came is kept beside the place as .microvm-*.part. --all
copies everything.

The sandbox is not trusted: what comes out of it stays beneath TARGET, no link is
followed on the way there, setuid and setgid are dropped, and more than --max-size
of content ends the copy. Links that lead elsewhere are copied as what they say;
look where they lead before you follow them.`,
		Example: `  microvm cp main.py work:
  microvm cp src work:
  microvm cp src/. work:/srv/app --ignore-file .gitignore
  microvm cp data.csv work:in/data.csv
  microvm cp work:result.json .
  microvm cp work:/workspace/out results
  microvm cp work:/var/log/dpkg.log - | tail
  microvm cp work:/workspace - | tar t`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usage("one source and one target are needed")
			}
			_, _, from := remotePath(args[0])
			_, _, to := remotePath(args[1])
			switch {
			case from == to:
				return usage("one of source and target must be SANDBOX:PATH, and only one")
			case from && o.ignoreFile != "":
				return usage("--ignore-file is for what goes into a sandbox")
			default:
				return nil
			}
		},
		ValidArgsFunction: g.completeCopy,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := g.client()
			if err != nil {
				return err
			}
			c := &copying{copyFlags: o, client: client, stdin: cmd.InOrStdin(), stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(), json: g.output == outputJSON}
			c.progress = newProgress(c.stderr, g.verbose)
			ref, remote, in := remotePath(args[1])
			if in {
				return c.into(cmd.Context(), args[0], ref, remote)
			}
			ref, remote, _ = remotePath(args[0])
			return c.outOf(cmd.Context(), ref, remote, args[1])
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&o.all, "all", "a", false, "copy also what is there already with the same size, time and permission bits")
	flags.BoolVar(&o.owners, "owners", false, "keep the numbers of owners and groups; for root on the side that they come to")
	flags.StringVar(&o.ignoreFile, "ignore-file", "", "leave out what this file says, which is written as a .gitignore is; paths in it are relative to SOURCE")
	flags.Var(&o.maxSize, "max-size", "end a copy out of a sandbox with more content than this: bytes, or 64m, 2g, or none")
	must(cmd.MarkFlagFilename("ignore-file"))
	return cmd
}

// copying is one run of cp.
type copying struct {
	copyFlags
	client         *microvm.Client
	stdin          io.Reader
	stdout, stderr io.Writer
	json           bool
	progress       *progress
}

// copyResult is what cp prints with -o json for a directory.
type copyResult struct {
	Object  string `json:"object"` // "copy"
	Sandbox string `json:"sandbox"`
	Path    string `json:"path"` // in the sandbox
	Local   string `json:"local"`
	Files   int64  `json:"files"`      // and links that were copied
	Bytes   int64  `json:"size_bytes"` // their content
	Same    int64  `json:"unchanged"`  // files and links that were there
	LeftOut int64  `json:"left_out"`   // FIFOs, sockets, devices
}

// warn says one line of what happened on the way.
func (c *copying) warn(format string, args ...any) { say(c.stderr, format+"\n", args...) }

// tell says what a copy of a directory came to.
func (c *copying) tell(r copyResult, where string, outward int64) error {
	if r.LeftOut > 0 {
		c.warn("note: %s left out: only files, directories and links are copied", countOf(r.LeftOut, "FIFO, socket or device")+wasWere(r.LeftOut))
	}
	if outward > 0 {
		c.warn("note: %s out of what was copied; look where before you follow them", countOf(outward, "link")+leads(outward))
	}
	if c.json {
		return printJSON(c.stdout, r)
	}
	c.progress.note("%s: %s (%s) copied, %d unchanged", where, countOf(r.Files, "file"), size(r.Bytes), r.Same)
	return nil
}

func wasWere(n int64) string {
	if n == 1 {
		return " was"
	}
	return " were"
}

func leads(n int64) string {
	if n == 1 {
		return " leads"
	}
	return " lead"
}

// watch shows a meter until done is called.
func (c *copying) watch(what string) (m *meter, done func()) {
	m = &meter{what: what}
	return m, c.progress.follow(func(after time.Duration) string { return m.line(after) })
}

// remotePath splits SANDBOX:PATH. What has a slash before its colon is local.
func remotePath(arg string) (ref, remote string, ok bool) {
	ref, remote, ok = strings.Cut(arg, ":")
	if !ok || ref == "" || strings.Contains(ref, "/") {
		return "", "", false
	}
	return ref, remote, true
}

// lastName is the name that a copy of a path gets in a directory, or "" where
// its content is copied and not itself.
func lastName(name string) string {
	if strings.HasSuffix(name, "/.") {
		return ""
	}
	switch base := filepath.Base(name); base {
	case ".", "..", string(filepath.Separator):
		return ""
	default:
		return base
	}
}

// sandboxFiles are the files of the sandbox that ref names.
func (c *copying) sandboxFiles(ctx context.Context, ref string) (*remote, error) {
	id, err := resolve(ctx, c.client, ref)
	return &remote{client: c.client, sandbox: id}, err
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
