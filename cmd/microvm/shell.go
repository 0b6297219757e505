package main

import (
	"github.com/spf13/cobra"
)

// theShell is bash where the image has it, else sh.
var theShell = []string{"sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi"}

func newShellCommand(g *globals) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "shell IMAGE",
		Short: "Open a shell in a new sandbox, and delete the sandbox",
		Long: `Creates a sandbox, puts files into its working directory, runs a shell in it on
this terminal, and deletes the sandbox when the shell has ended, when ~. is typed
at the beginning of a line, and after signals and errors. With --keep it stays:
then ~. only detaches, and microvm execution attach comes back.

As long as this terminal is attached, the sandbox does not end by its TTL, unless
--ttl is given, up to what the node allows.

When standard input is no terminal, the shell runs what it reads there. For a
shell in a sandbox that is there already: microvm exec -it SANDBOX -- bash.

The exit code is the shell's own; see microvm help exit-codes.`,
		Example: `  microvm shell python
  microvm shell base --user root --file setup.sh
  echo 'uname -r; id' | microvm shell base
  microvm shell python --keep --name work`,
		Args:              oneArg("IMAGE"),
		ValidArgsFunction: g.completeImage,
		Annotations:       map[string]string{programAnnotation: "yes"},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.attach = attachFlags{interactive: true, tty: onTerminal(cmd.InOrStdin())}
			return o.run(cmd, g, args[0], theShell)
		},
	}
	o.add(cmd)
	return cmd
}
