//go:build !linux

package main

import (
	"context"
	"io"
)

// packTree needs what only Linux says of a file.
func packTree(context.Context, string, func(string, ...any)) (io.ReadCloser, error) {
	return nil, hint(usage("a directory is a root tree only on Linux, which knows its owners and devices"), "make a tar of it there, and import that")
}
