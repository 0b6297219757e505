package machine

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

const (
	// mailboxSize bounds one batch of a push, and any one file: 8 GiB, sparse.
	mailboxSize = 8 << 30
	// mailboxSlack is left for headers, manifests and the end of the archive.
	mailboxSlack = 1 << 20
	// seedLimit is how much of the mailbox the host's init reads.
	seedLimit   = 1 << 20
	partialName = ".push"
	planPath    = "run/machine-push/plan"
)

// Manifests in the host: what is on the data disk stays, everything else goes with each stop.
const (
	stateDir           = "/var/lib/microvm"
	persistentManifest = stateDir + "/.pushed"
	volatileManifest   = "/etc/microvm/.pushed"
)

// File is one file to put into the host.
type File struct {
	// Src is a file here; when it is empty, Data is the content.
	Src  string
	Data []byte
	// Dst is the absolute, clean path in the host. Missing directories above it are made.
	Dst string
	// Mode is the permission there; owner and group are root.
	Mode fs.FileMode
}

func (f File) check() error {
	if !path.IsAbs(f.Dst) || path.Clean(f.Dst) != f.Dst || f.Dst == "/" || strings.ContainsAny(f.Dst, "\t\n\x00") {
		return &ValueError{"destination", fmt.Sprintf("%q", f.Dst), "an absolute clean path without tabs and newlines"}
	}
	return nil
}

// entry is one line of a manifest: what a push left in the host.
type entry struct {
	Hash  string // sha256, hex
	Size  int64
	MTime int64 // s
	Mode  fs.FileMode
	Path  string
}

func (e entry) line() string {
	return fmt.Sprintf("%s\t%d\t%d\t%o\t%s\n", e.Hash, e.Size, e.MTime, e.Mode.Perm(), e.Path)
}

func parseEntry(line string) (entry, error) {
	var e entry
	fields := strings.SplitN(line, "\t", 5)
	if len(fields) != 5 {
		return e, fmt.Errorf("parse manifest line: %d fields, want 5", len(fields))
	}
	e.Hash, e.Path = fields[0], fields[4]
	_, err := fmt.Sscanf(strings.Join(fields[1:4], " "), "%d %d %o", &e.Size, &e.MTime, &e.Mode)
	return e, err
}

// parseList reads what the host's "machine-push list" prints about paths: the manifests, and of each path whether the file is
// still as it was left. Entries of paths that were not asked for are kept unseen.
func parseList(text string, paths []string) (map[string]entry, error) {
	manifest := map[string]entry{}
	now := map[string]string{}
	left, here, found := strings.Cut(text, "---\n")
	if !found {
		return nil, fmt.Errorf("parse list of pushed files: no line of dashes")
	}
	for line := range strings.Lines(left) {
		e, err := parseEntry(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return nil, err
		}
		manifest[e.Path] = e
	}
	for line := range strings.Lines(here) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 3)
		if len(fields) != 3 {
			return nil, fmt.Errorf("parse list of pushed files: %d fields, want 3", len(fields))
		}
		now[fields[2]] = fields[0] + "\t" + fields[1]
	}
	for _, p := range paths {
		if e, ok := manifest[p]; ok && now[p] != fmt.Sprintf("%d\t%d", e.Size, e.MTime) {
			delete(manifest, p)
		}
	}
	return manifest, nil
}

// manifests renders both manifests, sorted, so that equal content gives equal bytes.
func manifests(all map[string]entry) (persistent, volatile []byte) {
	paths := make([]string, 0, len(all))
	for p := range all {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	for _, p := range paths {
		if strings.HasPrefix(p, stateDir+"/") {
			persistent = append(persistent, all[p].line()...)
		} else {
			volatile = append(volatile, all[p].line()...)
		}
	}
	return persistent, volatile
}

// outgoing is a file on its way, its content known.
type outgoing struct {
	File
	entry
}

// writeParcel writes the archive that the host's "machine-push apply" unpacks: the plan of renames, the files under partial
// names, both manifests last.
func writeParcel(w io.Writer, files []outgoing, all map[string]entry, now time.Time) error {
	var plan bytes.Buffer
	rename := func(to string) { fmt.Fprintf(&plan, "%s\t%s\n", to+partialName, to) }
	for _, f := range files {
		rename(f.Dst)
	}
	persistent, volatile := manifests(all)
	rename(persistentManifest)
	rename(volatileManifest)

	buffered := bufio.NewWriterSize(w, 1<<20)
	t := tar.NewWriter(buffered)
	add := func(name string, mode fs.FileMode, size int64, content io.Reader) error {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(name, "/"), Mode: int64(mode.Perm()), Size: size, ModTime: now, Format: tar.FormatGNU}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		n, err := io.Copy(t, content)
		if err == nil && n != size {
			err = fmt.Errorf("%d bytes, want %d: it changed while it was read", n, size)
		}
		return err
	}
	data := func(name string, mode fs.FileMode, text []byte) error {
		return add(name, mode, int64(len(text)), bytes.NewReader(text))
	}
	if err := data(planPath, 0o600, plan.Bytes()); err != nil {
		return fmt.Errorf("write parcel: %w", err)
	}
	for _, f := range files {
		if err := f.copyTo(add); err != nil {
			return fmt.Errorf("write %s into parcel: %w", f.Dst, err)
		}
	}
	if err := errors.Join(data(persistentManifest+partialName, 0o600, persistent), data(volatileManifest+partialName, 0o600, volatile), t.Close(), buffered.Flush()); err != nil {
		return fmt.Errorf("write parcel: %w", err)
	}
	return nil
}

func (f outgoing) copyTo(add func(string, fs.FileMode, int64, io.Reader) error) error {
	if f.Src == "" {
		return add(f.Dst+partialName, f.File.Mode, f.Size, bytes.NewReader(f.Data))
	}
	src, err := os.Open(f.Src)
	if err != nil {
		return err
	}
	defer src.Close()
	return add(f.Dst+partialName, f.File.Mode, f.Size, src)
}

// writeSeed writes the archive that the host unpacks over its root before systemd starts: files under their own names, and
// the volatile manifest that knows them.
func writeSeed(w io.Writer, files []outgoing, now time.Time) error {
	var out bytes.Buffer
	t := tar.NewWriter(&out)
	all := map[string]entry{}
	put := func(name string, mode fs.FileMode, text []byte) error {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(name, "/"), Mode: int64(mode.Perm()), Size: int64(len(text)), ModTime: now, Format: tar.FormatUSTAR}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		_, err := t.Write(text)
		return err
	}
	var err error
	for _, f := range files {
		err = errors.Join(err, put(f.Dst, f.File.Mode, f.Data))
		all[f.Dst] = f.entry
	}
	_, volatile := manifests(all)
	if err = errors.Join(err, put(volatileManifest, 0o600, volatile), t.Close()); err != nil {
		return fmt.Errorf("write seed: %w", err)
	}
	if out.Len() > seedLimit {
		return fmt.Errorf("write seed: %d bytes, at most %d are read", out.Len(), seedLimit)
	}
	if _, err = w.Write(out.Bytes()); err != nil {
		return fmt.Errorf("write seed: %w", err)
	}
	return nil
}

// batches splits files so that each batch fits the mailbox, in order.
func batches(files []outgoing, limit int64) ([][]outgoing, error) {
	var out [][]outgoing
	room := int64(0)
	for _, f := range files {
		need := f.Size + 4096
		if need > limit {
			return nil, fmt.Errorf("put %s into the host: %d bytes, at most %d fit", f.Dst, f.Size, limit-4096)
		}
		if len(out) == 0 || need > room {
			out, room = append(out, nil), limit
		}
		out[len(out)-1] = append(out[len(out)-1], f)
		room -= need
	}
	return out, nil
}
