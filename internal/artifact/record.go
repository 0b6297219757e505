package artifact

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// recordFile lies beside an artifact's files and says what they are.
const recordFile = "artifact.json"

// maxRecordBytes bounds every small JSON file that is read.
const maxRecordBytes = 1 << 20

// Artifact is one thing in the cache: complete, and hashed by the call that
// returned it.
type Artifact struct {
	Name      string        `json:"name"`
	Kind      Kind          `json:"kind"`
	ID        string        `json:"id,omitempty"` // image only: its id, which names its folder
	Version   string        `json:"version"`
	Arch      string        `json:"arch"`      // as `uname -m`; empty is any
	Supported bool          `json:"supported"` // still gets security fixes
	Source    Source        `json:"source"`    // where the bytes were first got from
	Word      string        `json:"word"`      // on whose word the checksums rest
	Key       string        `json:"key"`       // content key: what it was made from
	Made      time.Time     `json:"made"`      // UTC
	Files     []File        `json:"files"`
	Dir       string        `json:"-"` // absolute folder in the cache
	Cached    bool          `json:"-"` // this call found it in the cache
	Took      time.Duration `json:"-"` // how long this call took
}

// File is one file of an artifact.
type File struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"` // 64 hexadecimal digits
	Size   int64  `json:"size"`   // bytes
}

// Size is the sum of the files' sizes in bytes.
func (a Artifact) Size() int64 {
	var sum int64
	for _, f := range a.Files {
		sum += f.Size
	}
	return sum
}

// ChecksumError says that bytes are not the ones that the manifest or the
// record of a build promised.
type ChecksumError struct {
	File   string // which file
	Wanted string // sha256, hexadecimal
	Found  string // sha256, hexadecimal
	From   string // where the bytes came from
}

func (e *ChecksumError) Error() string {
	return fmt.Sprintf("check %s from %s: wanted sha256 %s, found %s", e.File, e.From, e.Wanted, e.Found)
}

// sumFile hashes a regular file of at most max bytes.
func sumFile(name string, limit int64) (sum string, size int64, err error) {
	file, err := openRegular(name)
	if err != nil {
		return "", 0, err
	}
	defer file.Close() //nolint:errcheck // only read
	hash := sha256.New()
	size, err = io.Copy(hash, io.LimitReader(file, limit+1))
	if err != nil {
		return "", 0, err
	}
	if size > limit {
		return "", 0, fmt.Errorf("read %s: larger than %d bytes", filepath.Base(name), limit)
	}
	return hex.EncodeToString(hash.Sum(nil)), size, nil
}

// openRegular opens a file for reading and refuses links, devices and pipes.
func openRegular(name string) (*os.File, error) {
	info, err := os.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("open %s: not a regular file", name)
	}
	return os.Open(name)
}

// match resolves a file spec to the one file in dir that it names.
func (f fileSpec) match(dir string) (string, error) {
	if !strings.Contains(f.Name, "*") {
		return f.Name, nil
	}
	found, err := filepath.Glob(filepath.Join(dir, f.Name))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("find %s: %d files match, want one", f.Name, len(found))
	}
	return filepath.Base(found[0]), nil
}

// seal checks a freshly made folder against the manifest and writes its record.
func seal(dir, key string, e entry, v version, o origin) error {
	made := Artifact{
		Name: e.Name, Kind: e.Kind, Version: v.Version, Arch: v.Arch, Supported: v.Supported,
		Source: o.From, Word: o.Word, Key: key, Made: time.Now().UTC().Truncate(time.Second),
	}
	for _, spec := range v.Files {
		name, err := spec.match(dir)
		if err != nil {
			return err
		}
		sum, size, err := sumFile(filepath.Join(dir, name), spec.MaxBytes)
		if err != nil {
			return fmt.Errorf("check %s: %w", name, err)
		}
		if spec.SHA256 != "" && sum != spec.SHA256 {
			return &ChecksumError{File: name, Wanted: spec.SHA256, Found: sum, From: string(o.From)}
		}
		if size == 0 {
			return fmt.Errorf("check %s: is empty", name)
		}
		made.Files = append(made.Files, File{Name: name, SHA256: sum, Size: size})
	}
	if e.Kind == KindImage {
		image, err := readImage(filepath.Join(dir, "image.json"))
		if err != nil {
			return err
		}
		for _, f := range made.Files {
			if strings.HasPrefix(f.Name, "rootfs.") && image.Digest != "sha256:"+f.SHA256 {
				return fmt.Errorf("check image.json: digest %.80q is not that of %s, sha256:%s", image.Digest, f.Name, f.SHA256)
			}
		}
		made.ID = image.ID
	}
	text, err := json.MarshalIndent(made, "", "  ")
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, recordFile), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

// imageFile is what this package reads of an image's metadata.
type imageFile struct {
	ID     string `json:"id"`
	Digest string `json:"digest"` // of the root file system: "sha256:" and 64 digits
}

func readImage(name string) (imageFile, error) {
	text, err := readSmall(name)
	if err != nil {
		return imageFile{}, fmt.Errorf("read image.json: %w", err)
	}
	var image imageFile
	if err := json.Unmarshal(text, &image); err != nil {
		return imageFile{}, fmt.Errorf("read image.json: %w", err)
	}
	if !idPattern.MatchString(image.ID) {
		return imageFile{}, fmt.Errorf("read image.json: id %.80q is not letters, digits, - and _", image.ID)
	}
	return image, nil
}

func readSmall(name string) ([]byte, error) {
	file, err := openRegular(name)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // only read
	text, err := io.ReadAll(io.LimitReader(file, maxRecordBytes+1))
	if err == nil && len(text) > maxRecordBytes {
		err = fmt.Errorf("read %s: larger than %d bytes", filepath.Base(name), maxRecordBytes)
	}
	return text, err
}

func readRecord(name string) (Artifact, error) {
	text, err := readSmall(name)
	if err != nil {
		return Artifact{}, err
	}
	var a Artifact
	if err := json.Unmarshal(text, &a); err != nil {
		return Artifact{}, fmt.Errorf("parse %s: %w", filepath.Base(name), err)
	}
	if !namePattern.MatchString(a.Name) || (a.ID != "" && !idPattern.MatchString(a.ID)) || len(a.Files) == 0 {
		return Artifact{}, fmt.Errorf("parse %s: name, id or files are malformed", filepath.Base(name))
	}
	for _, f := range a.Files {
		if f.Name != filepath.Base(f.Name) || !filePattern.MatchString(f.Name) || !sumPattern.MatchString(f.SHA256) {
			return Artifact{}, fmt.Errorf("parse %s: file %.80q is malformed", filepath.Base(name), f.Name)
		}
	}
	return a, nil
}

// load reads a cached folder and hashes its files: against the pins where the
// manifest has them, else against what was recorded when it was made.
func load(dir string, e entry, v version) (Artifact, error) {
	a, err := readRecord(filepath.Join(dir, recordFile))
	if err != nil {
		return Artifact{}, fmt.Errorf("load %s: %w", dir, err)
	}
	if a.Name != e.Name || a.Kind != e.Kind || len(a.Files) != len(v.Files) {
		return Artifact{}, fmt.Errorf("load %s: record is of another artifact", dir)
	}
	a.Dir, a.Supported = dir, v.Supported
	for i, spec := range v.Files {
		name, err := spec.match(dir)
		if err != nil {
			return Artifact{}, fmt.Errorf("load %s: %w", dir, err)
		}
		wanted := spec.SHA256
		if wanted == "" {
			wanted = a.Files[i].SHA256
		}
		sum, size, err := sumFile(filepath.Join(dir, name), spec.MaxBytes)
		if errors.Is(err, fs.ErrNotExist) {
			return Artifact{}, fmt.Errorf("load %s: %s is missing", dir, name)
		}
		if err != nil {
			return Artifact{}, fmt.Errorf("load %s: %w", dir, err)
		}
		if sum != wanted || name != a.Files[i].Name {
			return Artifact{}, &ChecksumError{File: name, Wanted: wanted, Found: sum, From: dir}
		}
		a.Files[i].SHA256, a.Files[i].Size = sum, size
	}
	return a, nil
}
