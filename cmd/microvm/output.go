package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"golang.org/x/term"
)

// clean makes a text from the server fit for one line of a terminal: what could
// move the cursor, change colours or turn the direction of writing is shown as
// its number. Output of programs never comes through here.
func clean(text string) string { return escapeRunes(text, unsafeRune) }

// cleanLines is clean for a text that may have several lines.
func cleanLines(text string) string {
	return escapeRunes(text, func(r rune) bool { return r != '\n' && unsafeRune(r) })
}

func unsafeRune(r rune) bool {
	switch {
	case r == unicode.ReplacementChar:
		return false
	case unicode.IsControl(r), r == 0x2028, r == 0x2029:
		return true
	default:
		return unicode.Is(unicode.Bidi_Control, r)
	}
}

func escapeRunes(text string, unsafe func(rune) bool) string {
	text = strings.ToValidUTF8(text, string(unicode.ReplacementChar))
	if !strings.ContainsFunc(text, unsafe) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if unsafe(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// printJSON writes a value with two spaces of indent. Runes that a terminal
// could act on are escaped, which JSON allows everywhere they can be.
func printJSON(w io.Writer, value any) error {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	return printAll(w, escapeRunes(b.String(), func(r rune) bool { return r != '\n' && unsafeRune(r) }))
}

func printAll(w io.Writer, text string) error {
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	return nil
}

// say writes for people what nothing depends on: where it cannot be written,
// there is nobody to tell.
func say(w io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(w, format, args...)
}

// printTable writes aligned columns; the cells must be clean.
func printTable(w io.Writer, head []string, rows [][]string) error {
	var b bytes.Buffer
	table := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	for _, row := range append([][]string{head}, rows...) {
		say(table, "%s\n", strings.Join(row, "\t"))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	// The last column needs no padding, and an empty one leaves none.
	lines := strings.Split(b.String(), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return printAll(w, strings.Join(lines, "\n"))
}

// age says a duration in its largest unit, as people do.
func age(d time.Duration) string {
	switch {
	case d < time.Second:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// size says bytes in a binary unit.
func size(n int64) string {
	units := []string{"KiB", "MiB", "GiB", "TiB"}
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n), ""
	for _, u := range units {
		value, unit = value/1024, u
		if value < 1024 {
			break
		}
	}
	return fmt.Sprintf("%.1f %s", value, unit)
}

// orDash shows what is not there as a dash.
func orDash[T ~string](value *T) string {
	if value == nil || *value == "" {
		return "-"
	}
	return clean(string(*value))
}

// onTerminal reports whether a stream is one.
func onTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
