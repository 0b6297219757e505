package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

const maxFile = 1 << 20 // bytes of a configuration file

// readFile reads a configuration file that nobody but root can change: it decides
// what root runs.
func readFile(name string) ([]byte, error) {
	path, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	if err := checkOwned(path); err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s is over %d bytes", path, maxFile)
	}
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return text, nil
}

// checkOwned makes sure that a regular file and all that leads to it are root's
// and closed to other writers. In a directory with the sticky bit (/tmp) others
// can add to it, but not replace what is root's.
func checkOwned(path string) error {
	for at := path; ; at = filepath.Dir(at) {
		var stat unix.Stat_t
		if err := unix.Lstat(at, &stat); err != nil {
			return &os.PathError{Op: "lstat", Path: at, Err: err}
		}
		kind := stat.Mode & unix.S_IFMT
		switch {
		case kind == unix.S_IFLNK:
			return fmt.Errorf("%s is a symlink; give the real path", at)
		case at == path && kind != unix.S_IFREG:
			return fmt.Errorf("%s is no regular file", at)
		case stat.Uid != 0:
			return fmt.Errorf("%s belongs to uid %d, not to root", at, stat.Uid)
		case stat.Mode&0o022 != 0 && (at == path || stat.Mode&unix.S_ISVTX == 0):
			return fmt.Errorf("%s can be written by others than root", at)
		case at == "/":
			return nil
		}
	}
}

// entry is one setting of a file.
type entry struct {
	file  string
	key   string
	at    *token.Position // of the key
	value ast.Node
}

// parse takes a configuration file apart: one mapping of names to single values.
// Which names there are is not its business.
func parse(file string, text []byte) ([]entry, error) {
	tree, err := parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey()) // entries tells of these itself, of all
	if err != nil {
		var bad yaml.Error
		if errors.As(err, &bad) && bad.GetToken() != nil {
			err = errorAt(file, bad.GetToken().Position, "%s", bad.GetMessage())
		}
		return nil, err
	}
	var all []entry
	var faults []error
	first := map[string]int{} // line by key
	for i, doc := range tree.Docs {
		if doc.Body == nil {
			continue // nothing, or comments
		}
		at := doc.Body.GetToken().Position
		mapping, ok := doc.Body.(ast.MapNode)
		if !ok || i > 0 {
			return nil, errorAt(file, at, "a configuration is one document of lines \"name: value\"")
		}
		for pair := mapping.MapRange(); pair.Next(); {
			e := entry{file: file, key: pair.Key().GetToken().Value, at: pair.Key().GetToken().Position, value: pair.Value()}
			if line, twice := first[e.key]; twice {
				faults = append(faults, errorAt(file, e.at, "%s is set in line %d already", e.key, line))
			}
			first[e.key] = e.at.Line
			all = append(all, e)
		}
	}
	return all, errors.Join(faults...)
}

// kinds says by a flag's type how its value is written.
var kinds = map[string]struct {
	node  ast.NodeType
	words string
}{
	"bool":     {ast.BoolType, "true or false"},
	"int":      {ast.IntegerType, "a whole number"},
	"int64":    {ast.IntegerType, "a whole number"},
	"duration": {ast.StringType, "a time with its unit, such as 90s or 1h30m"},
	"string":   {ast.StringType, "text; put it in quotes if it looks like something else"},
}

// set sets the flag of the entry's name.
func (e entry) set(flags *pflag.FlagSet) error {
	f := flags.Lookup(e.key)
	if f == nil {
		return errorAt(e.file, e.at, "%s is no setting; \"microvmd --help\" lists them", e.key)
	}
	kind := kinds[f.Value.Type()]
	text := e.value.GetToken()
	if e.value.Type() != kind.node || f.Value.Set(text.Value) != nil {
		return errorAt(e.file, text.Position, "%s is %q and must be %s", e.key, text.Value, kind.words)
	}
	if e.key == "database" {
		if err := noPassword(text.Value); err != nil {
			return errorAt(e.file, text.Position, "%w", err)
		}
	}
	return nil
}

func errorAt(file string, at *token.Position, format string, args ...any) error {
	return fmt.Errorf("%s:%d:%d: %w", file, at.Line, at.Column, fmt.Errorf(format, args...))
}
