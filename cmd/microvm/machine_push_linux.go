package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/microvmd/microvm/internal/machine"
)

func newMachinePush(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "push FILE... DIRECTORY",
		Short: "Put files into a directory of the running machine",
		Long: `Puts files into a directory of the running machine, as root's, with the
permission bits that they have here. A file that is there already with the same
content is left alone.`,
		Example: "  microvm machine push bin/census /usr/local/bin",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := openMachine(cmd, *name)
			if err != nil {
				return err
			}
			directory := args[len(args)-1]
			var files []machine.File
			for _, src := range args[:len(args)-1] {
				info, err := os.Stat(src)
				if err != nil {
					return err
				}
				if !info.Mode().IsRegular() {
					return usage("%s is no regular file", src)
				}
				files = append(files, machine.File{Src: src, Dst: path.Join(directory, filepath.Base(src)), Mode: info.Mode().Perm()})
			}
			pushed, err := m.Push(cmd.Context(), files)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d of %d files were new\n", len(pushed.Changed), len(files))
			return nil
		},
	}
}
