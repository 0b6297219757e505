package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// docsFile is made from the commands: UPDATE_DOCS=1 go test ./cmd/microvm -run TestDocs
var docsFile = filepath.Join("..", "..", "docs", "cli.md")

// visible calls do for every command that help shows, parents first.
func visible(cmd *cobra.Command, do func(*cobra.Command)) {
	if cmd.Hidden || cmd.Name() == "help" {
		return
	}
	do(cmd)
	for _, sub := range cmd.Commands() {
		visible(sub, do)
	}
}

// pure is the command tree without what the environment put into defaults.
func pure(t *testing.T) *cobra.Command {
	t.Helper()
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "MICROVM_") {
			t.Setenv(name, "")
		}
	}
	root, _ := newRootCommand()
	root.InitDefaultHelpCmd()
	return root
}

func TestDocs(t *testing.T) {
	want := docs(pure(t))
	if os.Getenv("UPDATE_DOCS") != "" {
		if err := os.WriteFile(docsFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Fatalf("docs/cli.md is not what the commands say; make it new with: UPDATE_DOCS=1 go test ./cmd/microvm -run TestDocs\n%s", firstDifference(string(got), want))
	}
}

func firstDifference(got, want string) string {
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d has %q, the commands say %q", i+1, a[i], b[i])
		}
	}
	return fmt.Sprintf("it has %d lines, the commands say %d", len(a), len(b))
}

// TestEveryCommandExplainsItself holds each verb to a summary, a description
// and, where it does something for sandboxes, examples that are right.
func TestEveryCommandExplainsItself(t *testing.T) {
	root := pure(t)
	visible(root, func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		if under(path, "completion") {
			return // cobra's own
		}
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: its summary is %q; it wants one line without a full stop", path, cmd.Short)
		}
		if !cmd.Runnable() || under(path, "machine") || under(path, "setup") || under(path, "doctor") || under(path, "up") || under(path, "down") {
			return // pages of help, and verbs of the host
		}
		if cmd.Long == "" || cmd.Example == "" {
			t.Errorf("%s: it has no description or no example", path)
		}
		for _, line := range strings.Split(cmd.Example, "\n") {
			checkExample(t, root, line)
		}
	})
}

func under(path, name string) bool {
	return path == "microvm "+name || strings.HasPrefix(path, "microvm "+name+" ")
}

// checkExample looks up the command and the flags of an example's line.
func checkExample(t *testing.T, root *cobra.Command, line string) {
	t.Helper()
	_, line, found := strings.Cut(line, "microvm ")
	if !found {
		return
	}
	line, _, _ = strings.Cut(line, " -- ")
	line, _, _ = strings.Cut(line, " |")
	cmd, rest, err := root.Find(strings.Fields(strings.TrimSuffix(line, ")")))
	if err != nil || cmd == root {
		t.Errorf("example %q has no command", line)
		return
	}
	for _, word := range rest {
		name, isLong := strings.CutPrefix(word, "--")
		short, isShort := strings.CutPrefix(word, "-")
		name, _, _ = strings.Cut(name, "=")
		switch {
		case isLong && cmd.Flag(name) == nil:
			t.Errorf("example %q: %s has no --%s", line, cmd.CommandPath(), name)
		case !isLong && isShort && len(short) == 1 && cmd.Flags().ShorthandLookup(short) == nil && cmd.InheritedFlags().ShorthandLookup(short) == nil:
			t.Errorf("example %q: %s has no -%s", line, cmd.CommandPath(), short)
		}
	}
}

// docs is the manual: contents, the pages of help, every command.
func docs(root *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# microvm, the command line\n\n<!-- Made from the commands; change them and run: UPDATE_DOCS=1 go test ./cmd/microvm -run TestDocs -->\n\n")
	var commands, topics []*cobra.Command
	visible(root, func(cmd *cobra.Command) {
		switch {
		case cmd.IsAdditionalHelpTopicCommand():
			topics = append(topics, cmd)
		case under(cmd.CommandPath(), "completion") && cmd.Name() != "completion":
		default:
			commands = append(commands, cmd)
		}
	})
	fmt.Fprintf(&b, "| command | what it does |\n| --- | --- |\n")
	for _, cmd := range commands[1:] {
		fmt.Fprintf(&b, "| [%s](#%s) | %s |\n", cmd.CommandPath(), anchor(cmd.CommandPath()), cmd.Short)
	}
	fmt.Fprintf(&b, "\n%s\n", block(root.Long))
	fmt.Fprintf(&b, "## Flags of every command\n\n%s", flagTable(root.PersistentFlags()))
	for _, topic := range topics {
		fmt.Fprintf(&b, "## %s\n\n%s", topic.Short, block(topic.Long))
	}
	for _, cmd := range commands[1:] {
		fmt.Fprintf(&b, "## %s\n\n%s.\n\n%s", cmd.CommandPath(), cmd.Short, block(cmd.UseLine()))
		if len(cmd.Aliases) > 0 {
			fmt.Fprintf(&b, "Also: %s.\n\n", strings.Join(cmd.Aliases, ", "))
		}
		if cmd.Long != "" {
			fmt.Fprintf(&b, "%s\n\n", strings.TrimSpace(cmd.Long))
		}
		if cmd.Example != "" {
			fmt.Fprintf(&b, "Examples:\n\n%s", block(outdent(cmd.Example)))
		}
		b.WriteString(flagTable(cmd.NonInheritedFlags()))
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

func anchor(title string) string { return strings.ReplaceAll(strings.ToLower(title), " ", "-") }

func block(text string) string { return "```text\n" + strings.TrimSpace(text) + "\n```\n\n" }

func outdent(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(line, "  ")
	}
	return strings.Join(lines, "\n")
}

func flagTable(flags *pflag.FlagSet) string {
	var rows []string
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name, usage := pflag.UnquoteUsage(f)
		text := "`--" + strings.TrimSpace(f.Name+" "+name) + "`"
		if f.Shorthand != "" {
			text = "`-" + f.Shorthand + "`, " + text
		}
		value := f.DefValue
		if slices.Contains([]string{"", "false", "0", "[]"}, value) || strings.Contains(usage, "(default") {
			value = ""
		} else {
			value = "`" + value + "`"
		}
		rows = append(rows, fmt.Sprintf("| %s | %s | %s |\n", text, strings.ReplaceAll(usage, "|", `\|`), value))
	})
	if len(rows) == 0 {
		return ""
	}
	return "| flag | what it does | default |\n| --- | --- | --- |\n" + strings.Join(rows, "") + "\n"
}
