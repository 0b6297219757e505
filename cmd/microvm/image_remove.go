package main

import (
	"fmt"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
)

func newImageRemoveCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "rm IMAGE...",
		Aliases: []string{"delete", "remove"},
		Short:   "Remove imported images",
		Long: `Removes images that were imported. One that a sandbox uses is not removed: the
error says how many do. All that can be removed are, also when one of them fails.`,
		Example: "  microvm image rm mine",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("IMAGE is missing")
			}
			return nil
		},
		ValidArgsFunction: g.completeImage,
		RunE: func(cmd *cobra.Command, names []string) error {
			client, err := g.client()
			if err != nil {
				return err
			}
			gone := &microvm.ImageList{Object: microvm.ListObjectList, URL: "/v1/images", Data: []microvm.Image{}}
			failed := false
			for _, name := range names {
				image, err := client.Images.Delete(cmd.Context(), name)
				if cmd.Context().Err() != nil {
					return err
				}
				if err != nil {
					failed = true
					message, fix := explain(err)
					say(cmd.ErrOrStderr(), "error: %s: %s\n", clean(name), cleanLines(message))
					if fix != "" {
						say(cmd.ErrOrStderr(), "  fix: %s\n", cleanLines(fix))
					}
					continue
				}
				gone.Data = append(gone.Data, *image)
				if g.output != outputJSON {
					if err := printAll(cmd.OutOrStdout(), fmt.Sprintln(clean(image.ID))); err != nil {
						return err
					}
				}
			}
			if g.output == outputJSON {
				if err := printJSON(cmd.OutOrStdout(), gone); err != nil {
					return err
				}
			}
			if failed {
				return &codeError{code: exitError}
			}
			return nil
		},
	}
}
