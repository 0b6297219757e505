package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
)

// gitName is never sent with a directory: nothing that runs needs it, and it may
// hold what was deleted long ago.
const gitName = ".git"

// runArgs wants an image, perhaps a directory or a file, and perhaps a command
// after --; a program of its own is all that makes the command dispensable.
func runArgs(cmd *cobra.Command, args []string) error {
	dash := cmd.ArgsLenAtDash()
	before := args
	if dash >= 0 {
		before = args[:dash]
	}
	switch {
	case len(before) == 2 && dash != len(args) && (dash > 0 || thereIs(before[1])):
		return nil
	case dash > 2:
		return usage("only IMAGE and one directory or file can stand before --; --file puts more there")
	default:
		return commandArgs("IMAGE")(cmd, args)
	}
}

func thereIs(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// runSource is a directory or a file that is put into the working directory.
type runSource struct {
	name string
	dir  bool
	tree *tree
}

// readSource looks at what is to be sent, so that what is wrong is met before a
// sandbox is made. Without a name it is nil.
func readSource(ctx context.Context, name string) (*runSource, error) {
	if name == "" {
		return nil, nil //nolint:nilnil // nothing is to be sent
	}
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, hint(usage("%s is no directory or file here", name), "give one to put into the sandbox, or a command after --")
	case err != nil:
		return nil, err
	case info.Mode().IsRegular():
		return &runSource{name: name, tree: &tree{entries: []entry{localEntry(info, filepath.Base(name), name)}}}, nil
	case !info.IsDir():
		return nil, usage("%s is neither a directory nor a file", name)
	}
	rules, err := readIgnoreIfThere(filepath.Join(name, ignoreName))
	if err != nil {
		return nil, err
	}
	all, err := scan(ctx, name, func(below string, dir bool) bool {
		return path.Base(below) == gitName || rules.ignores(below, dir)
	})
	if err != nil {
		return nil, err
	}
	all.entries = all.entries[1:] // the working directory keeps its mode and time
	return &runSource{name: name, dir: true, tree: all}, nil
}

// has says whether a file is sent.
func (s *runSource) has(name string) bool {
	return slices.ContainsFunc(s.tree.entries, func(e entry) bool { return e.path == name && !e.dir() })
}

// send puts the source into the working directory.
func (r *runner) send(ctx context.Context, s *runSource) error {
	if s == nil || len(s.tree.entries) == 0 {
		return nil
	}
	if s.tree.leftOut > 0 {
		say(r.stderr, "note: %s left out of %s: only files, directories and links are sent\n", countOf(s.tree.leftOut, "FIFO, socket or device")+wasWere(s.tree.leftOut), clean(s.name))
	}
	m := &meter{what: clean(s.name)}
	done := r.progress.follow(func(after time.Duration) string { return m.line(after) })
	defer done()
	job := &copyIn{
		remote: &remote{client: r.client, sandbox: r.sandbox}, tree: s.tree, dir: ".", single: !s.dir, meter: m, record: openRecord(r.sandbox),
		warn: func(format string, args ...any) { say(r.stderr, format+"\n", args...) },
	}
	if err := job.run(ctx); err != nil {
		return fmt.Errorf("send %s: %w", s.name, err)
	}
	return nil
}
