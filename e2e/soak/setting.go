package soak

import (
	"os"
	"strconv"
	"testing"
)

// Setting is a number from the environment, or what it is without: a seed, so
// that a history is asked for once more, or a longer run.
func Setting(t testing.TB, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}
