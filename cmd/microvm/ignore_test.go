package main

import (
	"strings"
	"testing"
)

// ignoreCases are rules of gitignore(5), and paths with whether git leaves them
// out ("git check-ignore --no-index" says the same of each). A path that ends in
// / is a directory.
var ignoreCases = []struct {
	rules string
	paths map[string]bool
}{
	{"# comment\n\n   \n\\#file\n", map[string]bool{"# comment": false, "#file": true, "a/#file": true}},
	{"*.log", map[string]bool{"a.log": true, "a/b.log": true, "a.logs": false, ".log": true, "a.log/": true, "a.log/x": true}},
	{"build/", map[string]bool{"build": false, "build/": true, "build/x": true, "a/build/": true, "a/build": false, "rebuild/": false}},
	{"/build", map[string]bool{"build": true, "build/": true, "a/build": false}},
	{"doc/*.txt", map[string]bool{"doc/a.txt": true, "doc/a/b.txt": false, "x/doc/a.txt": false}},
	{"a/b", map[string]bool{"a/b": true, "x/a/b": false, "a/b/c": true}},
	{"**/foo", map[string]bool{"foo": true, "a/foo": true, "a/b/foo/": true, "a/foobar": false}},
	{"**/foo/bar", map[string]bool{"foo/bar": true, "a/foo/bar": true, "foo/x/bar": false}},
	{"abc/**", map[string]bool{"abc/": false, "abc/x": true, "abc/x/y": true, "x/abc/y": false}},
	{"a/**/b", map[string]bool{"a/b": true, "a/x/b": true, "a/x/y/b": true, "ab": false}},
	{"a**b", map[string]bool{"ab": true, "axxb": true, "a/b": false, "x/ayb": true}},
	{"*.txt\n!keep.txt", map[string]bool{"a.txt": true, "keep.txt": false, "a/keep.txt": false}},
	{"!keep.txt\n*.txt", map[string]bool{"keep.txt": true}},
	{"dir/\n!dir/keep", map[string]bool{"dir/": true, "dir/keep": true}},
	{"dir/*\n!dir/keep", map[string]bool{"dir/": false, "dir/keep": false, "dir/other": true}},
	{"/*\n!/src\n/src/*\n!/src/main", map[string]bool{"a": true, "src/": false, "src/a": true, "src/main": false}},
	{"a?c", map[string]bool{"abc": true, "ac": false, "a/c": false}},
	{"[a-c]x", map[string]bool{"ax": true, "dx": false, "-x": false}},
	{"[!a-c]x\n[^0]y", map[string]bool{"ax": false, "dx": true, "0y": false, "1y": true}},
	{"[]x]y\n[a-]z\n[[:digit:]]d", map[string]bool{"]y": true, "xy": true, "-z": true, "az": true, "bz": false, "7d": true, "xd": false}},
	{"[\\]]q\n[.]dot", map[string]bool{"]q": true, ".dot": true, "xdot": false}},
	{"a[", map[string]bool{"a[": false, "a": false}},
	{"\\!file\n\\*star", map[string]bool{"!file": true, "*star": true, "xstar": false}},
	{"trailing   \nkept\\ \n", map[string]bool{"trailing": true, "kept ": true, "kept": false}},
	{"a.c\na+b\n(x)", map[string]bool{"a.c": true, "abc": false, "a+b": true, "aab": false, "(x)": true}},
	{"crlf\r\nnext\r\n", map[string]bool{"crlf": true, "next": true}},
	{"\ufeffbom", map[string]bool{"bom": true}},
	{"föö*", map[string]bool{"föö": true, "föö1": true, "fo": false}},
	{"/", map[string]bool{"a": false, "a/": false}},
	{"*", map[string]bool{"a": true, ".a": true, "a/b": true}},
	{"foo/bar/", map[string]bool{"foo/bar": false, "foo/bar/": true, "foo/bar/x": true, "x/foo/bar/": false}},
	{".*", map[string]bool{".git/": true, ".a": true, "a.b": false}},
	{"node_modules", map[string]bool{"node_modules/": true, "a/node_modules/b": true}},
}

// leavesOut says whether a path, or a directory above it, is left out.
func leavesOut(rules ignoreRules, name string) bool {
	dir := strings.HasSuffix(name, "/")
	name = strings.TrimSuffix(name, "/")
	for i := range len(name) {
		if name[i] == '/' && rules.ignores(name[:i], true) {
			return true
		}
	}
	return rules.ignores(name, dir)
}

func TestIgnoreRulesAreThoseOfGit(t *testing.T) {
	for _, test := range ignoreCases {
		rules, err := parseIgnore(strings.NewReader(test.rules))
		if err != nil {
			t.Errorf("%q: %v", test.rules, err)
			continue
		}
		for name, want := range test.paths {
			if got := leavesOut(rules, name); got != want {
				t.Errorf("%q leaves out %q: %t, want %t", test.rules, name, got, want)
			}
		}
	}
}

func TestIgnoreRulesThatAreWrong(t *testing.T) {
	for text, says := range map[string]string{"good\nbad\\": "line 2: a backslash", "[z-a]": "line 1: "} {
		if _, err := parseIgnore(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: error %v", text, err)
		}
	}
}
