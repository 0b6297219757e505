package main

import (
	"strings"
	"testing"

	microvm "github.com/microvmd/microvm/sdk/go"
)

func TestWhatRunsWithoutACommand(t *testing.T) {
	for name, test := range map[string]struct {
		language string
		files    string // in a directory, or one file
		dir      bool
		want     string
	}{
		"python":               {"python", "main.py util.py", true, "python3 main.py"},
		"a python package":     {"python", "__main__.py", true, "python3 ."},
		"main before others":   {"python", "__main__.py main.py", true, "python3 main.py"},
		"only at the top":      {"python", "src/main.py", true, ""},
		"another language":     {"python", "main.js", true, ""},
		"javascript":           {"node", "index.js main.js", true, "node main.js"},
		"typescript":           {"node", "main.ts", true, "node main.ts"},
		"go module":            {"go", "go.mod main.go", true, "go run ."},
		"go file":              {"go", "main.go", true, "go run main.go"},
		"rust":                 {"rust", "Cargo.toml src/main.rs", true, "cargo run --quiet"},
		"shell anywhere":       {"", "main.sh", true, "sh main.sh"},
		"shell after language": {"python", "main.sh main.py", true, "python3 main.py"},
		"nothing":              {"python", "", true, ""},
		"a python file":        {"python", "deep/job.PY", false, "python3 ./job.PY"},
		"a file like a flag":   {"python", "-c.py", false, "python3 ./-c.py"},
		"a go file":            {"go", "x.go", false, "go run ./x.go"},
		"a shell file":         {"rust", "x.sh", false, "sh ./x.sh"},
		"data":                 {"python", "x.csv", false, ""},
	} {
		s := &runSource{name: test.files, dir: test.dir, tree: new(tree)}
		for _, file := range strings.Fields(test.files) {
			s.tree.entries = append(s.tree.entries, entry{path: file, kind: microvm.FileTypeFile})
		}
		if got := strings.Join(s.command(test.language), " "); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
