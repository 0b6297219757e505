package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// globals are the flags that every command has.
type globals struct {
	url, key, machine string
	output            outputFlag
	verbose           bool

	socket string // where the daemon's socket is unless MICROVM_SOCKET says otherwise
	began  bool   // set when the command line was right and a command's own work begins
}

// outputFlag is -o. Its type is "string" to pflag, so that every command can
// read it by name.
type outputFlag string

const (
	outputTable outputFlag = "table"
	outputJSON  outputFlag = "json"
)

func (o *outputFlag) String() string { return string(*o) }
func (o *outputFlag) Type() string   { return "string" }
func (o *outputFlag) Set(text string) error {
	switch outputFlag(text) {
	case outputTable, outputJSON:
		*o = outputFlag(text)
		return nil
	default:
		return fmt.Errorf("must be table or json")
	}
}

func newRootCommand() (*cobra.Command, *globals) {
	g := &globals{output: outputTable, socket: defaultSocket}
	root := &cobra.Command{
		Use:   "microvm",
		Short: "Run code that nobody trusts, each run in its own microVM",
		Long: `microvm creates sandboxes, each a microVM with its own kernel, and runs programs
in them.

Start with:  microvm run python -- python3 -c 'print("hello")'`,
		Example: `  microvm run python --file main.py -- python3 main.py
  microvm sandbox create python --name work
  microvm exec work -- python3 --version
  microvm sandbox rm work`,
		SilenceErrors:    true,
		SilenceUsage:     true,
		PersistentPreRun: func(*cobra.Command, []string) { g.began = true },
	}
	group(root)
	flags := root.PersistentFlags()
	flags.StringVar(&g.url, "url", "", "the daemon's address, http://HOST:PORT or unix:///PATH (default $MICROVM_URL)")
	flags.StringVar(&g.key, "api-key", "", "the daemon's key (default $MICROVM_API_KEY; safer there, as other users can see flags)")
	flags.StringVar(&g.machine, "machine", "", `the emulated host to talk to (default "default")`)
	flags.VarP(&g.output, "output", "o", "table for people or json for programs")
	flags.BoolVarP(&g.verbose, "verbose", "v", false, "say what is waited for, also when standard error is no terminal")
	must(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp)))

	root.AddGroup(&cobra.Group{ID: "use", Title: "Sandboxes:"}, &cobra.Group{ID: "host", Title: "The host:"})
	add := func(group string, commands ...*cobra.Command) {
		for _, cmd := range commands {
			cmd.GroupID = group
			root.AddCommand(cmd)
		}
	}
	add("use", newRunCommand(g), newShellCommand(g), newExecCommand(g), newExecutionCommand(g), newCopyCommand(g), newSandboxCommand(g), newImageCommand(g), newImagesCommand(g))
	add("host", hostCommands()...)
	root.AddCommand(newVersionCommand(g))
	root.AddCommand(helpTopics()...)
	explainCompletion(root)
	refuseUnknownHelp(root)
	return root, g
}

// explainCompletion says for all shells at once what to do with their scripts.
func explainCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	cmd, _, err := root.Find([]string{"completion"})
	must(err)
	group(cmd)
	cmd.Use = "completion bash|zsh|fish|powershell"
	cmd.Short = "Print a script that makes a shell complete commands, images and sandboxes"
	cmd.Long = "Prints a script for a shell. With it, Tab completes commands and flags, and asks\nthe daemon for images, sandbox ids and names."
	cmd.Example = `  source <(microvm completion bash)
  microvm completion zsh > "${fpath[1]}/_microvm"
  microvm completion fish > ~/.config/fish/completions/microvm.fish`
}

// refuseUnknownHelp makes help on what is not there an error.
func refuseUnknownHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	cmd, _, err := root.Find([]string{"help"})
	must(err)
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if _, rest, err := root.Find(args); err != nil || len(rest) > 0 {
			return hint(usage("there is no help on %q", strings.Join(args, " ")), root.CommandPath()+" --help")
		}
		return nil
	}
}

// group makes a command that only holds others: without one of them it shows
// its help, and a wrong one is refused.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		message := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			message += "; did you mean " + strings.Join(near, " or ") + "?"
		}
		return usage("%s", message)
	}
	cmd.SuggestionsMinimumDistance = 2
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return cmd
}

// must stops a program that was put together wrongly.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
