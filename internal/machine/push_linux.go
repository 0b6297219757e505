package machine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Pushed says what a push did.
type Pushed struct {
	Changed []string // destinations that were sent
	Same    int      // files that the host had already
	Bytes   int64    // sent
	Took    time.Duration
}

// Push puts files into the running host. It sends only what the host does not have, by SHA-256 and mode, and each file
// appears at its place at once and whole, so that a program that runs can be replaced. When it fails, some files may be new
// and others old; to call it again is safe.
func (m *Machine) Push(ctx context.Context, files []File) (Pushed, error) {
	began := time.Now()
	var done Pushed
	if _, err := m.running(); err != nil {
		return done, err
	}
	lock, err := waitLock(ctx, m.path("mailbox.lock"), nil)
	if err != nil {
		return done, err
	}
	defer lock.Close()
	out, err := m.hash(ctx, files)
	if err != nil {
		return done, err
	}
	paths := make([]string, 0, len(out))
	for _, f := range out {
		paths = append(paths, f.Dst)
	}
	if len(paths) == 0 {
		return done, nil
	}
	list, err := m.Run(ctx, append([]string{"machine-push", "list"}, paths...)...)
	if err != nil {
		return done, err
	}
	all, err := parseList(string(list), paths)
	if err != nil {
		return done, err
	}
	now := time.Now().Truncate(time.Second)
	var need []outgoing
	for _, f := range out {
		if have, ok := all[f.Dst]; ok && have.Hash == f.Hash && have.Mode == f.entry.Mode {
			done.Same++
			continue
		}
		f.MTime = now.Unix()
		need = append(need, f)
	}
	parts, err := batches(need, mailboxSize-mailboxSlack)
	if err != nil {
		return done, err
	}
	for _, part := range parts {
		for _, f := range part {
			all[f.Dst] = f.entry
		}
		if err := m.deliver(ctx, part, all, now); err != nil {
			return done, err
		}
		for _, f := range part {
			done.Changed = append(done.Changed, f.Dst)
			done.Bytes += f.Size
		}
	}
	done.Took = time.Since(began)
	return done, nil
}

// deliver sends one batch.
func (m *Machine) deliver(ctx context.Context, part []outgoing, all map[string]entry, now time.Time) error {
	box, err := os.OpenFile(m.path(mailboxDisk), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("open mailbox: %w", err)
	}
	defer box.Close()
	err = writeParcel(box, part, all, now)
	if err == nil {
		_, err = m.Run(ctx, "machine-push", "apply")
	}
	return errors.Join(err, emptyMailbox(box))
}

// emptyMailbox gives the blocks back; the size stays, since QEMU has the file open as a disk.
func emptyMailbox(box *os.File) error {
	const punchHole = 0x1 | 0x2 // FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
	if err := syscall.Fallocate(int(box.Fd()), punchHole, 0, mailboxSize); err != nil {
		return fmt.Errorf("empty mailbox: %w", err)
	}
	return nil
}

// hashed remembers a file's hash for as long as size, inode and times stay.
type hashed struct {
	Size  int64  `json:"size"`
	Inode uint64 `json:"inode"`
	MTime int64  `json:"mtime_ns"`
	CTime int64  `json:"ctime_ns"`
	Hash  string `json:"sha256"`
}

// hash gives each file its content hash, from memory where nothing changed.
func (m *Machine) hash(ctx context.Context, files []File) ([]outgoing, error) {
	known, next := map[string]hashed{}, map[string]hashed{}
	if err := readJSON(m.path(hashesFile), &known); err != nil {
		known = map[string]hashed{} // the first push, or a damaged file: everything is hashed again
	}
	out := make([]outgoing, 0, len(files))
	fresh := false
	for _, f := range files {
		if err := f.check(); err != nil {
			return nil, err
		}
		o := outgoing{File: f, entry: entry{Path: f.Dst, Mode: f.Mode.Perm(), Size: int64(len(f.Data))}}
		if f.Src == "" {
			sum := sha256.Sum256(f.Data)
			o.Hash = hex.EncodeToString(sum[:])
			out = append(out, o)
			continue
		}
		src, err := filepath.Abs(f.Src)
		if err != nil {
			return nil, fmt.Errorf("find %s: %w", f.Src, err)
		}
		h, err := hashFile(ctx, src, known[src])
		if err != nil {
			return nil, err
		}
		fresh = fresh || h != known[src]
		next[src] = h
		o.Size, o.Hash = h.Size, h.Hash
		out = append(out, o)
	}
	if fresh {
		for p, h := range known {
			if _, ok := next[p]; !ok && exists(p) {
				next[p] = h
			}
		}
		return out, writeJSON(m.path(hashesFile), next)
	}
	return out, nil
}

func hashFile(ctx context.Context, path string, known hashed) (hashed, error) {
	f, err := os.Open(path)
	if err != nil {
		return hashed{}, fmt.Errorf("read file to put into the host: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return hashed{}, err
	}
	if !info.Mode().IsRegular() {
		return hashed{}, fmt.Errorf("read %s: it is no regular file", path)
	}
	st := info.Sys().(*syscall.Stat_t)
	now := hashed{Size: info.Size(), Inode: st.Ino, MTime: st.Mtim.Nano(), CTime: st.Ctim.Nano(), Hash: known.Hash}
	if now == known {
		return now, nil
	}
	sum := sha256.New()
	buf := make([]byte, 1<<20)
	for {
		if err := context.Cause(ctx); err != nil {
			return hashed{}, err
		}
		n, err := f.Read(buf)
		sum.Write(buf[:n])
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return hashed{}, fmt.Errorf("read %s: %w", path, err)
		}
	}
	now.Hash = hex.EncodeToString(sum.Sum(nil))
	return now, nil
}
