package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/microvmd/microvm/internal/posture"
)

// checkImported hashes the images that came through the API: no record of set-up
// has them, only what lies beside each.
func checkImported(stateDir string) []posture.Finding {
	files, err := filepath.Glob(filepath.Join(stateDir, "images", "*", "image.json"))
	if err != nil {
		files = nil // the directory's name is no pattern's fault: there is none of this name
	}
	var all []posture.Finding
	for _, file := range files {
		imported, err := readImported(file)
		if err == nil && imported == nil {
			continue // set-up's own, which has a record
		}
		a := posture.Artifact{Name: "image-" + filepath.Base(filepath.Dir(file)), Err: err}
		if imported != nil {
			a = *imported
		}
		finding := a.Check()
		if finding.Status == posture.Fail {
			finding.Wanted = "the image as it was imported"
			finding.Fix = "find out who changed it, then import its tree again"
		}
		all = append(all, finding)
	}
	return all
}

// readImported reads what an image says of itself; nil is one that was not
// imported.
func readImported(file string) (*posture.Artifact, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it was just removed
	}
	if err != nil {
		return nil, err
	}
	var image struct{ ID, Source, Digest, Format string }
	if err := json.Unmarshal(text, &image); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if image.Source != "imported" {
		return nil, nil
	}
	sum := strings.TrimPrefix(image.Digest, "sha256:")
	return &posture.Artifact{
		Name: "image-" + image.ID, Version: "imported", Supported: true, Pinned: true, Where: "state directory", Installed: true,
		Files: []posture.PinnedFile{{Path: filepath.Join(filepath.Dir(file), "rootfs-"+sum+"."+image.Format), SHA256: sum}},
	}, nil
}
