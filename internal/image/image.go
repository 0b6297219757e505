// Package image owns the Image noun: a named, immutable root filesystem with
// its metadata. It knows where a node keeps images and how to check one; it
// does not build them and never mounts one.
package image

import "fmt"

// Image is one image that this node can boot.
type Image struct {
	ID              string            `json:"id"`       // "python"; letters, digits, '-', '.'; 1..64
	Language        string            `json:"language"` // "python", or ""
	LanguageVersion string            `json:"language_version"`
	Arch            string            `json:"arch"`       // GOARCH: "amd64", "arm64"
	SizeBytes       int64             `json:"size_bytes"` // of the file
	Digest          string            `json:"digest"`     // "sha256:<hex>" of the file
	Format          string            `json:"format"`     // "ext4" or "erofs"
	Env             map[string]string `json:"env"`        // of every execution; no secrets
	Workdir         string            `json:"workdir"`    // absolute; executions start here
	UID             int               `json:"uid"`        // of User
	GID             int               `json:"gid"`        // of User's own group
	User            string            `json:"user"`       // who runs executions unless told otherwise
	DebianRelease   string            `json:"debian_release"`
	PackagesCount   int               `json:"packages_count"` // Debian packages in it

	// Path is the file on this node.
	Path string `json:"-"`
}

// String names the image and its content.
func (i Image) String() string { return fmt.Sprintf("%s@%.19s", i.ID, i.Digest) }
