package main

import (
	"errors"
	"regexp"
	"strings"
	"unicode/utf8"
)

// globPattern makes a regular expression of a pattern of gitignore(5): * and ?
// stop at slashes, ** between them does not, [..] is one of some bytes, and a
// backslash takes what follows as it is.
func globPattern(glob string) (string, error) {
	var out strings.Builder
	for i := 0; i < len(glob); {
		rest := glob[i:]
		atStart := i == 0 || glob[i-1] == '/'
		switch {
		case atStart && strings.HasPrefix(rest, "**/"):
			out.WriteString("(?:.*/)?")
			i += len("**/")
		case atStart && rest == "**":
			out.WriteString(".+") // all that is in it, and not itself
			i += len("**")
		case rest[0] == '*':
			out.WriteString("[^/]*")
			i += len(rest) - len(strings.TrimLeft(rest, "*"))
		case rest[0] == '?':
			out.WriteString("[^/]")
			i++
		case rest[0] == '[':
			class, n := globClass(rest)
			out.WriteString(class)
			i += n
		case rest[0] == '\\':
			if len(rest) == 1 {
				return "", errors.New("a backslash ends it, with nothing behind")
			}
			_, n := utf8.DecodeRuneInString(rest[1:])
			out.WriteString(regexp.QuoteMeta(rest[1 : 1+n]))
			i += 1 + n
		default:
			_, n := utf8.DecodeRuneInString(rest)
			out.WriteString(regexp.QuoteMeta(rest[:n]))
			i += n
		}
	}
	return out.String(), nil
}

// globClass makes [..] a class of a regular expression, and says how long it was.
// One that does not end fits nothing, as with git.
func globClass(glob string) (class string, n int) {
	var out strings.Builder
	out.WriteString("[")
	i := 1
	if i < len(glob) && (glob[i] == '!' || glob[i] == '^') {
		out.WriteString("^/") // no class fits a slash
		i++
	}
	for first := true; i < len(glob); first = false {
		switch c := glob[i]; {
		case c == ']' && !first:
			return out.String() + "]", i + 1
		case c == '[' && strings.HasPrefix(glob[i:], "[:"):
			end := strings.Index(glob[i:], ":]")
			if end < 0 {
				return noneFits, len(glob)
			}
			out.WriteString(glob[i : i+end+len(":]")])
			i += end + len(":]")
			continue
		case c == '\\' && i+1 < len(glob):
			_, n := utf8.DecodeRuneInString(glob[i+1:])
			out.WriteString(regexp.QuoteMeta(glob[i+1 : i+1+n]))
			i += 1 + n
			continue
		case c == '-' && !first && i+1 < len(glob) && glob[i+1] != ']':
			out.WriteString("-")
		case strings.IndexByte(`\[]^-&~`, c) >= 0:
			out.WriteString(`\` + string(c))
		default:
			_, n := utf8.DecodeRuneInString(glob[i:])
			out.WriteString(glob[i : i+n])
			i += n
			continue
		}
		i++
	}
	return noneFits, len(glob)
}

// noneFits is a pattern that fits nothing.
const noneFits = `[^\x00-\x{10FFFF}]`
