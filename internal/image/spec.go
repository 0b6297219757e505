package image

import (
	"encoding/json"
	"path/filepath"
	"strings"

	"github.com/microvmd/microvm/internal/fault"
)

// Spec is what an import is told of a tree.
type Spec struct {
	ID              string
	User            string            // who runs executions; must be in its /etc/passwd; default root
	Workdir         string            // absolute; default /workspace; the guest makes it where it is missing
	Env             map[string]string // of every execution
	Language        string            // shown, and nothing else
	LanguageVersion string
	Replace         bool // take the place of an imported image of this id
}

// Bounds on what callers say of an image. All of it is in image.json.
const (
	maxWord    = 64       // bytes of a user's name, of a language and of its version
	maxWorkdir = 1024     // bytes
	maxEnv     = 32 << 10 // bytes of an environment as JSON
)

// fill sets defaults and refuses what no image can have.
func (s Spec) fill() (Spec, error) {
	if s.User == "" {
		s.User = "root"
	}
	if s.Workdir == "" {
		s.Workdir = "/workspace"
	}
	env, err := json.Marshal(s.Env)
	if err != nil {
		return s, err
	}
	switch {
	case !ValidID(s.ID):
		return s, fault.Param("name", "name must be 1 to 64 letters, digits, '-' and '.', the first a letter or a digit; it is %+.70q", s.ID)
	case len(s.User) > maxWord || strings.ContainsAny(s.User, ":/\x00\n"):
		return s, fault.Param("user", "user must be a name of at most %d bytes in the tree's /etc/passwd; it is %+.70q", maxWord, s.User)
	case len(s.Workdir) > maxWorkdir || !filepath.IsAbs(s.Workdir) || filepath.Clean(s.Workdir) != s.Workdir || strings.ContainsRune(s.Workdir, 0):
		return s, fault.Param("workdir", "workdir must be a clean absolute path of at most %d bytes; it is %+.70q", maxWorkdir, s.Workdir)
	case len(s.Language) > maxWord || !plain(s.Language):
		return s, fault.Param("language", "language must be at most %d visible characters; it is %+.70q", maxWord, s.Language)
	case len(s.LanguageVersion) > maxWord || !plain(s.LanguageVersion):
		return s, fault.Param("language_version", "language_version must be at most %d visible characters; it is %+.70q", maxWord, s.LanguageVersion)
	case len(env) > maxEnv:
		return s, fault.Param("env", "env has %d bytes, the most is %d", len(env), maxEnv)
	}
	for key, value := range s.Env {
		if key == "" || strings.ContainsAny(key, "=\x00") || strings.Contains(value, "\x00") {
			return s, fault.Param("env", "env must be NAME=VALUE without a NUL; one has the name %+.70q", key)
		}
	}
	return s, nil
}

func plain(word string) bool {
	return !strings.ContainsFunc(word, func(c rune) bool { return c <= ' ' || c > '~' })
}

// image is what the tree and what was said of it make together.
func (s Spec) image(tree *checker, arch string) (Image, error) {
	img := Image{
		ID: s.ID, Language: s.Language, LanguageVersion: s.LanguageVersion, Arch: arch, Format: "ext4",
		Env: s.Env, Workdir: s.Workdir, User: s.User, Source: Imported,
	}
	var err error
	if img.UID, img.GID, err = tree.seen.user(s.User); err != nil {
		return Image{}, err
	}
	return img, tree.workdir(s.Workdir)
}
