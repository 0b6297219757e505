package main

import (
	"strings"

	"github.com/spf13/cobra"

	microvm "github.com/microvmd/microvm/sdk/go"
)

func newImagesCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "images",
		Short: "List images",
		Long:  `Lists the images that sandboxes can be created from on this node.`,
		Example: `  microvm images
  microvm images -o json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := g.client()
			if err != nil {
				return err
			}
			list, err := client.Images.List(cmd.Context())
			if err != nil {
				return err
			}
			if g.output == outputJSON {
				return printJSON(cmd.OutOrStdout(), list)
			}
			var rows [][]string
			for _, image := range list.Data {
				rows = append(rows, []string{
					clean(image.ID), languageOf(image), clean(image.Arch), size(image.SizeBytes), clean(image.User), clean(image.Workdir), clean(string(image.Source)), shortDigest(image.Digest),
				})
			}
			return printTable(cmd.OutOrStdout(), []string{"ID", "LANGUAGE", "ARCH", "SIZE", "USER", "WORKDIR", "SOURCE", "DIGEST"}, rows)
		},
	}
}

// languageOf says the language and its version.
func languageOf(image microvm.Image) string {
	if image.LanguageVersion == nil {
		return orDash(image.Language)
	}
	return orDash(image.Language) + " " + clean(*image.LanguageVersion)
}

// shortDigest keeps what tells images apart; -o json has all of it.
func shortDigest(digest string) string {
	_, hex, found := strings.Cut(digest, ":")
	if !found || len(hex) < 12 {
		return clean(digest)
	}
	return clean(hex[:12])
}
