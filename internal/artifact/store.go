package artifact

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Options say where a Store may look and whom it tells. The zero value is
// usable except for Recipes, without which nothing can be built.
type Options struct {
	// Sources that may be used; empty means all. Without Release nothing
	// outside package registries is contacted.
	Sources []Source
	// SupportedOnly leaves out versions that are out of support.
	SupportedOnly bool
	// Recipes holds one folder per recipe with a build.sh in it.
	Recipes fs.FS
	// Arch as `uname -m` says it; empty is this program's own.
	Arch string
	// ReleaseURL is what release paths are joined to; empty is Firecracker's
	// release page.
	ReleaseURL string
	// Progress is told about every step; nil is nobody. It must be quick and
	// safe to call from several goroutines.
	Progress func(Event)
}

// firecrackerReleases is the project's own page; assets are <tag>/<file>.
const firecrackerReleases = "https://github.com/firecracker-microvm/firecracker/releases/download"

// Store is a cache directory and the ways to fill it. Its methods may be
// called from several goroutines and several processes at once.
type Store struct {
	dir      string // absolute; set at construction
	options  Options
	manifest *manifest
	client   *http.Client
	limits   limits
}

// Open makes cacheDir where it is missing (mode 0755) and returns a Store on
// it. An empty cacheDir is refused: the caller decides on a default.
func Open(cacheDir string, options Options) (*Store, error) {
	if cacheDir == "" {
		return nil, errors.New("open cache: no directory given")
	}
	dir, err := filepath.Abs(cacheDir)
	if err != nil {
		return nil, fmt.Errorf("open cache: %w", err)
	}
	list, err := parseManifest(manifestText)
	if err != nil {
		return nil, err
	}
	if len(options.Sources) == 0 {
		options.Sources = AllSources()
	}
	if options.Arch == "" {
		options.Arch = HostArch()
	}
	if options.ReleaseURL == "" {
		options.ReleaseURL = firecrackerReleases
	}
	if options.Progress == nil {
		options.Progress = func(Event) {}
	}
	for _, sub := range []string{"", locksFolder, partialFolder, logsFolder} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, fmt.Errorf("open cache: %w", err)
		}
	}
	return &Store{dir: dir, options: options, manifest: list, client: newClient(), limits: defaultLimits}, nil
}

// Names lists every artifact of the manifest that has a version for the
// store's architecture.
func (s *Store) Names() []string {
	var names []string
	for _, e := range s.manifest.Artifacts {
		if _, err := s.manifest.find(e.Name, s.options.Arch, false); err == nil {
			names = append(names, e.Name)
		}
	}
	return names
}

func (s *Store) allows(source Source) bool { return slices.Contains(s.options.Sources, source) }

// Lookup says whether the artifact is in the cache, complete and undamaged,
// without getting or building anything. A damaged one is a *ChecksumError.
func (s *Store) Lookup(name string) (Artifact, bool, error) {
	e, err := s.manifest.find(name, s.options.Arch, s.options.SupportedOnly)
	if err != nil {
		return Artifact{}, false, err
	}
	for _, v := range e.Versions {
		for _, o := range v.Sources {
			found, ok, err := s.cached(e, v, o)
			if err != nil || ok {
				return found, ok, err
			}
		}
	}
	return Artifact{}, false, nil
}

// cached reads one version from the cache and hashes every file of it.
func (s *Store) cached(e entry, v version, o origin) (Artifact, bool, error) {
	key, err := s.key(e, v, o)
	if err != nil {
		return Artifact{}, false, err
	}
	dir := filepath.Join(s.dir, e.Name, key)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return Artifact{}, false, nil
	}
	found, err := load(dir, e, v)
	if err != nil {
		return Artifact{}, false, err
	}
	found.Cached = true
	return found, true, nil
}

// Ensure returns the artifact, from the first allowed source that has it. It
// blocks while another process makes the same artifact, until ctx ends.
func (s *Store) Ensure(ctx context.Context, name string) (Artifact, error) {
	start := time.Now()
	got, err := s.ensure(ctx, name)
	got.Took = time.Since(start)
	if err != nil {
		err = fmt.Errorf("ensure %s: %w", name, err)
		s.options.Progress(Event{Artifact: name, State: Failed, Text: oneLine(err.Error()), Took: got.Took})
		return Artifact{}, err
	}
	text := fmt.Sprintf("%s from %s", got.Version, got.Source)
	if got.Cached {
		text = fmt.Sprintf("%s from cache", got.Version)
	}
	s.options.Progress(Event{Artifact: name, State: Done, Text: text, Took: got.Took})
	return got, nil
}

// ErrOlderNotTried is part of an Ensure's error when a version that is out of
// support was left out because of SupportedOnly.
var ErrOlderNotTried = errors.New("an older version, out of support, was not tried")

func (s *Store) ensure(ctx context.Context, name string) (got Artifact, err error) {
	e, err := s.manifest.find(name, s.options.Arch, s.options.SupportedOnly)
	if s.options.SupportedOnly {
		if all, allErr := s.manifest.find(name, s.options.Arch, false); allErr == nil && len(all.Versions) > len(e.Versions) {
			defer func() {
				if err != nil {
					err = errors.Join(err, ErrOlderNotTried)
				}
			}()
		}
	}
	if err != nil {
		return Artifact{}, err
	}
	report := s.reporter(name)
	unlock, err := s.lock(ctx, name, report)
	if err != nil {
		return Artifact{}, err
	}
	defer unlock()

	if s.allows(Cache) {
		report("checking the cache")
		for _, v := range e.Versions {
			for _, o := range v.Sources {
				found, ok, err := s.cached(e, v, o)
				if ok {
					return found, nil
				}
				if err != nil {
					report("the cached copy is damaged and is made anew: " + err.Error())
				}
			}
		}
	}
	var failures []error
	tried := 0
	for _, v := range e.Versions {
		for _, o := range v.Sources {
			if !s.allows(o.From) {
				failures = append(failures, fmt.Errorf("%s %s from %s: not allowed by the list of sources", name, v.Version, o.From))
				continue
			}
			tried++
			got, err := s.get(ctx, e, v, o, report)
			if err == nil {
				return got, nil
			}
			failures = append(failures, fmt.Errorf("%s %s from %s: %w", name, v.Version, o.From, err))
			var wrong *ChecksumError
			if ctx.Err() != nil || errors.As(err, &wrong) {
				// Somebody's bytes are not what they should be: an operator must
				// see that, not have it covered up by the next source.
				return Artifact{}, errors.Join(failures...)
			}
			report(fmt.Sprintf("%s from %s failed, trying the next source: %v", v.Version, o.From, err))
		}
	}
	return Artifact{}, errors.Join(failures...)
}

// get makes one version from one source and places it in the cache.
func (s *Store) get(ctx context.Context, e entry, v version, o origin, report func(string)) (Artifact, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout(), fmt.Errorf("took longer than %s", o.timeout()))
	defer cancel()
	key, err := s.key(e, v, o)
	if err != nil {
		return Artifact{}, err
	}
	dir, err := s.place(e.Name, key, func(tmp string) error {
		var err error
		switch o.From {
		case Release:
			err = s.fromRelease(ctx, v, o, tmp, report)
		case Package:
			err = s.fromPackage(ctx, v, o, tmp, report)
		case Build:
			err = s.fromRecipe(ctx, e.Name, o, tmp, report)
		default:
			err = fmt.Errorf("unknown source %q", o.From)
		}
		if err == nil && ctx.Err() != nil {
			err = ctx.Err()
		}
		if err != nil {
			if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
				err = fmt.Errorf("%w (%w)", err, cause)
			}
			return err
		}
		return seal(tmp, key, e, v, o)
	})
	if err != nil {
		return Artifact{}, err
	}
	return load(dir, e, v)
}

// EnsureAll gets several artifacts side by side and returns them in the order
// of names. One failure does not stop the others, so that a long build is not
// lost; all errors are joined.
func (s *Store) EnsureAll(ctx context.Context, names ...string) ([]Artifact, error) {
	got := make([]Artifact, len(names))
	errs := make([]error, len(names))
	var wait sync.WaitGroup
	for i, name := range names {
		wait.Go(func() { got[i], errs[i] = s.Ensure(ctx, name) })
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return got, nil
}
