// Package image owns the Image noun: a named, immutable root filesystem with
// its metadata. It knows where a node keeps images, how to check one, who holds
// one, and how a tar that anybody made becomes one. It runs no recipe, follows
// no link of a tree on this host and never mounts one.
//
// States of an import: a draft that nobody sees -> an image, by one rename. An
// image is removed by one rename, too, and only while nobody holds it.
package image

import (
	"fmt"
	"strings"
)

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
	PackagesCount   int               `json:"packages_count"` // Debian packages in it; 0 is not counted
	// Source is Imported, or "" for one that a recipe made: what brought an
	// image is what replaces or removes it.
	Source string `json:"source,omitempty"`

	// Path is the file on this node.
	Path string `json:"-"`
}

// Imported is the Source of an image that came through the API.
const Imported = "imported"

// file is the name of its file in its folder. The file of an imported one has
// its content's name, so that a replacement leaves the one alone that it
// replaces: a plan that was made before still finds what it was made of.
func (i Image) file() string {
	if i.Source != Imported {
		return "rootfs." + i.Format
	}
	return rootPrefix + strings.TrimPrefix(i.Digest, "sha256:") + "." + i.Format
}

// rootPrefix begins the names of imported images' files.
const rootPrefix = "rootfs-"

// String names the image and its content.
func (i Image) String() string { return fmt.Sprintf("%s@%.19s", i.ID, i.Digest) }
