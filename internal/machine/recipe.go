package machine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// recipe is a directory that is built once and then shared, found by the content of what it is built from.
type recipe struct {
	name  string                                                     // "qemu", "host"
	parts [][]byte                                                   // everything that decides the result
	build func(ctx context.Context, dir string, log io.Writer) error // fills the empty dir
}

// key is the content key: equal parts, equal key.
func (r recipe) key() string {
	h := sha256.New()
	for _, p := range append([][]byte{[]byte(r.name)}, r.parts...) {
		fmt.Fprintf(h, "%d\n", len(p))
		h.Write(p)
	}
	return r.name + "-" + hex.EncodeToString(h.Sum(nil))[:16]
}

// ensure returns the built directory below cache, building it when it is not there. Two processes at once are safe: one
// builds, the other waits for it. A build that fails leaves only its log.
func (r recipe) ensure(ctx context.Context, cache string, p *progress) (string, error) {
	key := r.key()
	path := filepath.Join(cache, key)
	if exists(path) {
		return path, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("make cache: %w", err)
	}
	lock, err := waitLock(ctx, path+".lock", func() { p.say("another process builds %s: waiting for it", key) })
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if exists(path) {
		return path, nil
	}
	partial := path + ".partial"
	if err := os.RemoveAll(partial); err != nil { // of a build that was killed: ours, since we hold the lock
		return "", fmt.Errorf("clear %s: %w", partial, err)
	}
	if err := os.Mkdir(partial, 0o755); err != nil {
		return "", fmt.Errorf("make build directory: %w", err)
	}
	log, err := os.Create(path + ".log")
	if err != nil {
		return "", fmt.Errorf("make build log: %w", err)
	}
	defer log.Close()
	if err := r.build(ctx, partial, log); err != nil {
		return "", errors.Join(fmt.Errorf("build %s: %w (log: %s)%s", r.name, err, log.Name(), lastLines(log.Name(), 8)), os.RemoveAll(partial))
	}
	if err := os.Rename(partial, path); err != nil {
		return "", fmt.Errorf("place %s: %w", key, err)
	}
	return path, nil
}

// lastLines is the end of a text file, indented, for an error message.
func lastLines(path string, n int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	var out bytes.Buffer
	for _, l := range lines[max(0, len(lines)-n):] {
		fmt.Fprintf(&out, "\n    %.300s", l)
	}
	return out.String()
}
