package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strings"
)

// ignoreName is the file that run reads in a directory.
const ignoreName = ".microvmignore"

// ignoreRules are the lines of one ignore file, written as gitignore(5) says. The
// last that fits a path decides.
type ignoreRules []ignoreRule

type ignoreRule struct {
	fits    *regexp.Regexp // a path below the directory of the rules
	again   bool           // ! takes the path back in
	dirOnly bool
}

// ignores says whether a path is left out. What is in a directory that is left
// out is not asked about: as with git, nothing in it can be taken back.
func (r ignoreRules) ignores(name string, dir bool) bool {
	for i := len(r) - 1; i >= 0; i-- {
		if (dir || !r[i].dirOnly) && r[i].fits.MatchString(name) {
			return !r[i].again
		}
	}
	return false
}

func readIgnore(name string) (ignoreRules, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read
	rules, err := parseIgnore(file)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return rules, nil
}

// readIgnoreIfThere is readIgnore of a file that need not be there.
func readIgnoreIfThere(name string) (ignoreRules, error) {
	rules, err := readIgnore(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return rules, err
}

func parseIgnore(from io.Reader) (ignoreRules, error) {
	var rules ignoreRules
	lines := bufio.NewScanner(from)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if n == 1 {
			line = strings.TrimPrefix(line, "\ufeff")
		}
		rule, ok, err := parseRule(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if ok {
			rules = append(rules, rule)
		}
	}
	return rules, lines.Err()
}

// parseRule reads a line; not ok is an empty one or a comment.
func parseRule(line string) (rule ignoreRule, ok bool, err error) {
	line = trimBlanks(strings.TrimSuffix(line, "\r"))
	if line == "" || line[0] == '#' {
		return rule, false, nil
	}
	if line[0] == '!' {
		rule.again, line = true, line[1:]
	}
	if cut, found := strings.CutSuffix(line, "/"); found {
		rule.dirOnly, line = true, cut
	}
	anchored := strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	if line == "" {
		return rule, false, nil
	}
	pattern, err := globPattern(line)
	if err != nil {
		return rule, false, err
	}
	if !anchored {
		pattern = "(?:.*/)?" + pattern
	}
	rule.fits, err = regexp.Compile("(?s)^" + pattern + "$")
	return rule, true, err
}

// trimBlanks cuts blanks at the end, but one behind a backslash.
func trimBlanks(line string) string {
	for strings.HasSuffix(line, " ") && !escaped(line[:len(line)-1]) {
		line = line[:len(line)-1]
	}
	return line
}

// escaped says whether what follows a text is behind a backslash that counts.
func escaped(text string) bool {
	return (len(text)-len(strings.TrimRight(text, `\`)))%2 == 1
}
