package main

import "github.com/spf13/cobra"

func newImageCommand(g *globals) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "image",
		Short: "Import, list and remove images",
		Long: `Imports, lists and removes images: the root trees that sandboxes are created from.
What microvm setup installed is the node's own, and is neither replaced nor removed
here.`,
		Example: `  microvm image import ./rootfs --name mine
  microvm image ls
  microvm image rm mine`,
	})
	list := newImagesCommand(g)
	list.Use, list.Aliases = "ls", []string{"list"}
	list.Example = "  microvm image ls\n  microvm image ls -o json"
	cmd.AddCommand(newImageImportCommand(g), list, newImageRemoveCommand(g))
	return cmd
}
