package main

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// defaultCommands are what runs a directory without a command, by the language of
// the image: the first whose file is there.
var defaultCommands = map[string][]struct {
	file    string
	command []string
}{
	"python": {
		{"main.py", []string{"python3", "main.py"}},
		{"__main__.py", []string{"python3", "."}},
	},
	"node": {
		{"main.js", []string{"node", "main.js"}},
		{"main.mjs", []string{"node", "main.mjs"}},
		{"main.ts", []string{"node", "main.ts"}},
		{"index.js", []string{"node", "index.js"}},
		{"index.ts", []string{"node", "index.ts"}},
	},
	"go": {
		{"go.mod", []string{"go", "run", "."}},
		{"main.go", []string{"go", "run", "main.go"}},
	},
	"rust": {
		{"Cargo.toml", []string{"cargo", "run", "--quiet"}},
	},
	"": { // any
		{"main.sh", []string{"sh", "main.sh"}},
	},
}

// interpreters run a file without a command, by the language and its ending.
var interpreters = map[string]map[string][]string{
	"python": {".py": {"python3"}},
	"node":   {".js": {"node"}, ".mjs": {"node"}, ".cjs": {"node"}, ".ts": {"node"}, ".mts": {"node"}},
	"go":     {".go": {"go", "run"}},
	"":       {".sh": {"sh"}},
}

// commandFor is what runs a source whose user gave no command.
func commandFor(ctx context.Context, client *microvm.Client, image string, s *runSource) ([]string, error) {
	language, err := languageFor(ctx, client, image)
	if err != nil {
		return nil, err
	}
	if command := s.command(language); command != nil {
		return command, nil
	}
	var known []string
	for _, l := range []string{language, ""} {
		for _, c := range defaultCommands[l] {
			known = append(known, c.file)
		}
		if l == "" {
			break
		}
	}
	looked := "it is none of those that a sandbox of " + clean(image) + " knows how to run"
	if s.dir {
		looked = fmt.Sprintf("for %s a directory runs by itself with %s in it", clean(image), strings.Join(known, " or "))
	}
	return nil, hint(usage("what is to run of %s? %s", s.name, looked), fmt.Sprintf("say it: microvm run %s %s -- CMD [ARG]...", image, s.name))
}

func (s *runSource) command(language string) []string {
	for _, l := range []string{language, ""} {
		if !s.dir {
			name := filepath.Base(s.name)
			if with := interpreters[l][strings.ToLower(path.Ext(name))]; with != nil {
				return append(append([]string{}, with...), "./"+name)
			}
			continue
		}
		for _, c := range defaultCommands[l] {
			if s.has(c.file) {
				return c.command
			}
		}
	}
	return nil
}

// languageFor is the language of an image, or "".
func languageFor(ctx context.Context, client *microvm.Client, id string) (string, error) {
	list, err := client.Images.List(ctx)
	if err != nil {
		return "", err
	}
	for _, image := range list.Data {
		if image.ID == id && image.Language != nil {
			return strings.ToLower(*image.Language), nil
		}
	}
	return "", nil
}
