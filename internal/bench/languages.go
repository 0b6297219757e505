package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// languageMemory of each microVM that runs a first program, in MiB: enough for
// every linker.
const languageMemory = 1024

// greeting is what every first program prints.
const greeting = "hello\n"

// language is a first program, and how its users start it.
type language struct {
	name, image  string
	file, source string
	command      []string // looked up in /usr/bin of the image
}

// languages are all first programs. Their names may stand in Config.Only, and
// are measured only where they do: not every node has the images.
var languages = []language{
	{"language-python", "python", "main.py", "print('hello')\n", []string{"python3", "main.py"}},
	{"language-node", "node", "main.js", "console.log('hello');\n", []string{"node", "main.js"}},
	{"language-typescript", "node", "main.ts", "const text: string = 'hello';\nconsole.log(text);\n", []string{"node", "main.ts"}},
	{"language-go", "go", "main.go", "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println(\"hello\") }\n", []string{"go", "run", "main.go"}},
	{"language-rust", "rust", "main.rs", "fn main() {\n    println!(\"hello\");\n}\n", []string{"sh", "-c", "rustc main.rs && ./main"}},
}

// LanguageNames are what Config.Only may name beside Names.
func LanguageNames() []string {
	var all []string
	for _, l := range languages {
		all = append(all, l.name)
	}
	return all
}

// LanguageResult is what create and first program take together, beside the
// program alone on the host itself.
type LanguageResult struct {
	Name     string `json:"name"`
	Image    string `json:"image"`
	Command  string `json:"command"`
	Host     Stats  `json:"host"`     // the program alone, in the image's tree on the host
	Restored Stats  `json:"restored"` // create from a template, file, program
	Cold     Stats  `json:"cold"`     // create by a boot, file, program
}

// measure takes the three sides of a language in turns. Each round begins with
// another one, so that a host that grows faster or slower favours none. The
// first round does not count.
func (l language) measure(ctx context.Context, rounds int, progress io.Writer, host, restored, cold sample) (LanguageResult, error) {
	sides := []sample{host, restored, cold}
	took := make([][]time.Duration, len(sides))
	for round := range rounds + 1 {
		for turn := range sides {
			side := (round + turn) % len(sides)
			one, err := sides[side](ctx)
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return LanguageResult{}, fmt.Errorf("measure %s (%s): %w", l.name, []string{"host", "restored", "cold"}[side], interrupted(ctx, err))
			}
			if round > 0 {
				took[side] = append(took[side], one)
			}
		}
		say(progress, "%s: round %d of %d\n", l.name, round, rounds)
	}
	return LanguageResult{
		Name: l.name, Image: l.image, Command: strings.Join(l.command, " "),
		Host: Summarize(took[0]), Restored: Summarize(took[1]), Cold: Summarize(took[2]),
	}, nil
}

// greeted is what comes of a first program that printed this.
func (l language) greeted(printed string) error {
	if printed != greeting {
		return fmt.Errorf("%s printed %.100q", strings.Join(l.command, " "), printed)
	}
	return nil
}

// languageTable is the part of the report that has languages, for people.
func languageTable(results []LanguageResult) string {
	if len(results) == 0 {
		return ""
	}
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	say(table, "FIRST PROGRAM\tON THE HOST\tP95\tRESTORED\tP95\tCOLD\tP95\n")
	for _, r := range results {
		say(table, "%s: %s\t%s\t%s\t%s\t%s\t%s\t%s\n", strings.TrimPrefix(r.Name, "language-"), r.Command, millis(r.Host.Median), millis(r.Host.P95),
			millis(r.Restored.Median), millis(r.Restored.P95), millis(r.Cold.Median), millis(r.Cold.P95))
	}
	_ = table.Flush() // a strings.Builder takes everything
	say(&b, "\nRestored, cold: create, write the file, run it, %d MiB. On the host: the program alone, in the same image's tree.\n", languageMemory)
	return b.String()
}

// findLanguages says which languages are asked for.
func findLanguages(only []string) (found []language, err error) {
	var all []error
	for _, name := range only {
		known := false
		for _, l := range languages {
			if l.name == name {
				found, known = append(found, l), true
			}
		}
		if !known && strings.HasPrefix(name, "language-") {
			all = append(all, fmt.Errorf("no first program %q; there are %s", name, strings.Join(LanguageNames(), ", ")))
		}
	}
	return found, errors.Join(all...)
}
