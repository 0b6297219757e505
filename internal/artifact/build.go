package artifact

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// recipeRoots lists what a recipe depends on: its own folder, and every file
// and folder beside it that is no other recipe (shared scripts).
func (s *Store) recipeRoots(o origin) ([]string, error) {
	if s.options.Recipes == nil {
		return nil, errors.New("read recipes: none are given")
	}
	if _, err := fs.Stat(s.options.Recipes, path.Join(o.Recipe, "build.sh")); err != nil {
		return nil, fmt.Errorf("read recipe %s: %w", o.Recipe, err)
	}
	entries, err := fs.ReadDir(s.options.Recipes, ".")
	if err != nil {
		return nil, fmt.Errorf("read recipes: %w", err)
	}
	var roots []string
	for _, item := range entries {
		_, err := fs.Stat(s.options.Recipes, path.Join(item.Name(), "build.sh")) // fails for a file, too
		if item.Name() == o.Recipe || err != nil {
			roots = append(roots, item.Name())
		}
	}
	return roots, nil
}

// walkRecipe visits every file of a recipe in a fixed order. Go source and
// prose are left out: a word changed in them must not rebuild a kernel.
func (s *Store) walkRecipe(o origin, visit func(name string, text []byte) error) error {
	roots, err := s.recipeRoots(o)
	if err != nil {
		return err
	}
	for _, root := range roots {
		err := fs.WalkDir(s.options.Recipes, root, func(name string, item fs.DirEntry, err error) error {
			if err != nil || item.IsDir() || path.Ext(name) == ".go" || path.Ext(name) == ".md" {
				return err
			}
			text, err := fs.ReadFile(s.options.Recipes, name)
			if err != nil {
				return err
			}
			return visit(name, text)
		})
		if err != nil {
			return fmt.Errorf("read recipe %s: %w", o.Recipe, err)
		}
	}
	return nil
}

// recipeKey is a hash over the recipe's files and the architecture.
func (s *Store) recipeKey(o origin) (string, error) {
	hash := sha256.New()
	fmt.Fprintf(hash, "%s\n%s\n", o.Recipe, s.options.Arch)
	err := s.walkRecipe(o, func(name string, text []byte) error {
		sum := sha256.Sum256(text)
		fmt.Fprintf(hash, "%s %x\n", name, sum)
		return nil
	})
	return hex.EncodeToString(hash.Sum(nil))[:32], err
}

// debianArch is an architecture as Debian names it, which recipes speak.
func debianArch(arch string) string {
	switch arch {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return arch
}

// fromRecipe writes the recipe to a folder and runs its build.sh with bash.
// ARCH is the architecture as Debian names it, MICROVM_SCRATCH a directory on
// disk for the script's own work (not TMPDIR: that would reach programs in a
// root which the script makes and enters, where the directory is not).
// Standard error becomes progress; all output is kept in the cache's logs.
func (s *Store) fromRecipe(ctx context.Context, name string, o origin, outdir string, report func(string)) (err error) {
	work, err := os.MkdirTemp(filepath.Dir(outdir), tempPrefix+"recipe-")
	if err != nil {
		return fmt.Errorf("run recipe: %w", err)
	}
	defer func() { err = joinQuiet(err, removeTree(work)) }()
	// Scratch space beside the result, and not in /tmp, which is memory on some
	// systems: a kernel's objects and a root file system need gigabytes. What a
	// killed script leaves there is swept by the next maker.
	scratch := filepath.Join(work, tempPrefix+"scratch")
	if err := errors.Join(os.Mkdir(scratch, 0o755), os.Chmod(work, 0o755)); err != nil {
		return fmt.Errorf("run recipe: %w", err)
	}
	err = s.walkRecipe(o, func(name string, text []byte) error {
		full := filepath.Join(work, filepath.FromSlash(name))
		mode := fs.FileMode(0o644)
		if strings.HasSuffix(name, ".sh") || bytes.HasPrefix(text, []byte("#!")) {
			mode = 0o755 // an embedded file has lost its mode
		}
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			return err
		}
		return os.WriteFile(full, text, mode)
	})
	if err != nil {
		return err
	}
	logName := filepath.Join(s.dir, logsFolder, name+".log")
	file, err := os.Create(logName)
	if err != nil {
		return fmt.Errorf("run recipe: %w", err)
	}
	defer file.Close() //nolint:errcheck // a log
	report("running " + o.Recipe + "/build.sh")
	err = command{
		args:   []string{"bash", filepath.Join(work, o.Recipe, "build.sh"), outdir},
		dir:    work,
		env:    []string{"ARCH=" + debianArch(s.options.Arch), "MICROVM_SCRATCH=" + scratch},
		log:    &logFile{file: file, left: maxLogBytes},
		report: report,
	}.run(ctx)
	if err != nil {
		return fmt.Errorf("%w\n  all of its output: %s", err, logName)
	}
	return nil
}
