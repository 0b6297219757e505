package artifact

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
)

//go:embed manifest.yaml
var manifestText []byte

// Source is a kind of place that an artifact can come from.
type Source string

// The sources, in the order in which they are tried.
const (
	Cache   Source = "cache"   // found in the cache, hashed again
	Release Source = "release" // downloaded from the project's release page
	Package Source = "package" // taken out of a package from a package registry
	Build   Source = "build"   // built here from a recipe
)

// AllSources lists every source in the order in which they are tried.
func AllSources() []Source { return []Source{Cache, Release, Package, Build} }

// ParseSources reads a comma list such as "cache,package,build". Order and
// repeats do not matter; an empty list means all; an unknown name is refused.
func ParseSources(list string) ([]Source, error) {
	if strings.TrimSpace(list) == "" {
		return AllSources(), nil
	}
	var sources []Source
	for word := range strings.SplitSeq(list, ",") {
		source := Source(strings.TrimSpace(word))
		if !slices.Contains(AllSources(), source) {
			return nil, fmt.Errorf("parse sources: %q is none of cache, release, package, build", word)
		}
		if !slices.Contains(sources, source) {
			sources = append(sources, source)
		}
	}
	return sources, nil
}

// Kind says which layout an artifact has in the state directory.
type Kind string

// The kinds of artifact.
const (
	KindFirecracker Kind = "firecracker" // bin/firecracker and bin/jailer
	KindKernel      Kind = "kernel"      // kernel/vmlinux and kernel/kernel.json
	KindImage       Kind = "image"       // images/<id>/rootfs.* and image.json
)

type manifest struct {
	Artifacts []entry `yaml:"artifacts"`
}

type entry struct {
	Name     string    `yaml:"name"`
	Kind     Kind      `yaml:"kind"`
	Versions []version `yaml:"versions"`
}

type version struct {
	Version   string     `yaml:"version"`
	Arch      string     `yaml:"arch"` // as uname -m says it; empty is any
	Supported bool       `yaml:"supported"`
	Files     []fileSpec `yaml:"files"`
	Sources   []origin   `yaml:"sources"`
}

type fileSpec struct {
	Name     string `yaml:"name"`      // a plain name, or one with a * that exactly one file matches
	SHA256   string `yaml:"sha256"`    // empty: rests on the archive's sum, or on the build
	MaxBytes int64  `yaml:"max_bytes"` // refuse anything larger
}

// origin is one way to get a version. Which fields are set depends on From.
type origin struct {
	From           Source            `yaml:"from"`
	Path           string            `yaml:"path"`            // release: below the base URL
	Package        string            `yaml:"package"`         // package: its name
	PackageVersion string            `yaml:"package_version"` // package
	PythonVersion  string            `yaml:"python_version"`  // package: which interpreter's wheels to look at
	Recipe         string            `yaml:"recipe"`          // build: folder with build.sh
	SHA256         string            `yaml:"sha256"`          // release, package: of the archive
	MaxBytes       int64             `yaml:"max_bytes"`       // release, package: of the archive
	TimeoutSeconds int               `yaml:"timeout_seconds"` // for the whole attempt
	Word           string            `yaml:"word"`            // on whose word the sums rest
	Members        map[string]string `yaml:"members"`         // our file name -> name in the archive
}

func (o origin) timeout() time.Duration { return time.Duration(o.TimeoutSeconds) * time.Second }

var (
	namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,63}$`)
	filePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}(\*)?$`)
	sumPattern  = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// parseManifest reads a manifest and refuses unknown keys and anything that
// could not be checked later. All faults are reported at once.
func parseManifest(text []byte) (*manifest, error) {
	var m manifest
	decoder := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict())
	if err := decoder.Decode(&m); err != nil {
		return nil, fmt.Errorf("parse manifest: %w", err)
	}
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("parse manifest: "+format, args...))
	}
	seen := map[string]bool{}
	for _, e := range m.Artifacts {
		if !namePattern.MatchString(e.Name) || seen[e.Name] {
			fault("artifact name %q is malformed or used twice", e.Name)
		}
		seen[e.Name] = true
		if !slices.Contains([]Kind{KindFirecracker, KindKernel, KindImage}, e.Kind) {
			fault("%s: kind %q is unknown", e.Name, e.Kind)
		}
		for _, v := range e.Versions {
			v.check(e.Name, fault)
		}
	}
	return &m, errors.Join(faults...)
}

func (v version) check(name string, fault func(string, ...any)) {
	at := fmt.Sprintf("%s %s %s", name, v.Version, v.Arch)
	if v.Version == "" || len(v.Files) == 0 || len(v.Sources) == 0 {
		fault("%s: version, files and sources are all needed", at)
	}
	for _, f := range v.Files {
		if !filePattern.MatchString(f.Name) || f.MaxBytes <= 0 {
			fault("%s: file %q needs a plain name and max_bytes", at, f.Name)
		}
		if f.SHA256 != "" && !sumPattern.MatchString(f.SHA256) {
			fault("%s: file %s: sha256 is not 64 hexadecimal digits", at, f.Name)
		}
	}
	for _, o := range v.Sources {
		if o.TimeoutSeconds <= 0 || o.Word == "" {
			fault("%s: source %s needs timeout_seconds and word", at, o.From)
		}
		switch o.From {
		case Release, Package:
			if !sumPattern.MatchString(o.SHA256) || o.MaxBytes <= 0 {
				fault("%s: source %s needs sha256 and max_bytes of its archive", at, o.From)
			}
			for _, f := range v.Files {
				if o.Members[f.Name] == "" {
					fault("%s: source %s does not say which member is %s", at, o.From, f.Name)
				}
			}
			if o.From == Release && (o.Path == "" || path.Clean(o.Path) != o.Path || strings.HasPrefix(o.Path, "/")) {
				fault("%s: release path %q is not a clean relative path", at, o.Path)
			}
			if o.From == Package && (o.Package == "" || o.PackageVersion == "" || o.PythonVersion == "") {
				fault("%s: package source needs package, package_version and python_version", at)
			}
		case Build:
			if !namePattern.MatchString(o.Recipe) {
				fault("%s: recipe %q is malformed", at, o.Recipe)
			}
		default:
			fault("%s: source %q is none of release, package, build", at, o.From)
		}
	}
}

// HostArch is this program's architecture as `uname -m` names it.
func HostArch() string {
	switch runtime.GOARCH {
	case "amd64":
		return "x86_64"
	case "arm64":
		return "aarch64"
	}
	return runtime.GOARCH
}

// find returns the entry of that name with the versions that may run on arch.
func (m *manifest) find(name, arch string, supportedOnly bool) (entry, error) {
	for _, e := range m.Artifacts {
		if e.Name != name {
			continue
		}
		usable, outOfSupport := e, ""
		usable.Versions = nil
		for _, v := range e.Versions {
			if v.Arch != "" && v.Arch != arch {
				continue
			}
			if supportedOnly && !v.Supported {
				outOfSupport = v.Version
				continue
			}
			usable.Versions = append(usable.Versions, v)
		}
		if len(usable.Versions) == 0 {
			if outOfSupport != "" {
				return entry{}, fmt.Errorf("find artifact %s: only %s, which is out of support, is known for %s", name, outOfSupport, arch)
			}
			return entry{}, fmt.Errorf("find artifact %s: no version for %s", name, arch)
		}
		return usable, nil
	}
	var names []string
	for _, e := range m.Artifacts {
		names = append(names, e.Name)
	}
	return entry{}, fmt.Errorf("find artifact %q: unknown; known are %s", name, strings.Join(names, ", "))
}
