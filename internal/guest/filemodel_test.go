package guest

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/microvmd/microvm/internal/guestwire"
)

// node is what lies at a path of a model.
type node struct {
	dir  bool
	mode uint32
	text string
}

// model is a working directory, by paths relative to it; "." is itself.
type model map[string]node

// at says what lies at a path: through is whether a file lies on the way.
func (m model) at(name string) (n node, ok, through bool) {
	for up := path.Dir(name); up != "."; up = path.Dir(up) {
		if above, ok := m[up]; ok && !above.dir {
			return node{}, false, true
		}
	}
	n, ok = m[name]
	return n, ok, false
}

// parents makes what is missing above a path.
func (m model) parents(name string) {
	for up := path.Dir(name); up != "."; up = path.Dir(up) {
		if _, ok := m[up]; !ok {
			m[up] = node{dir: true, mode: 0o755}
		}
	}
}

func (m model) put(name string, n node) {
	m.parents(name)
	m[name] = n
}

// beneath is what lies in a directory at any depth, in the order of lists.
func (m model) beneath(dir string) (names []string) {
	for name := range m {
		if name != "." && (dir == "." || strings.HasPrefix(name, dir+"/")) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, guestwire.ComparePaths)
	return names
}

// run does random calls to a box and to its model, and compares what they say.
type run struct {
	t     testing.TB
	b     *box
	m     model
	rng   *rand.Rand
	calls map[string]int // by name and code
}

func (r *run) name() string {
	names := []string{"a", "b", "a.b", "c\xff"}
	var parts []string
	for range 1 + r.rng.IntN(4) {
		parts = append(parts, names[r.rng.IntN(len(names))])
	}
	return strings.Join(parts, "/")
}

// known is a name that most often is there.
func (r *run) known() string {
	all := r.m.beneath(".")
	if len(all) == 0 || r.rng.IntN(4) == 0 {
		return r.name()
	}
	return all[r.rng.IntN(len(all))]
}

func (r *run) mode() uint32 { return []uint32{0o644, 0o600, 0o755, 0o701}[r.rng.IntN(4)] }

func (r *run) text() string { return strings.Repeat(fmt.Sprint(r.rng.IntN(10)), r.rng.IntN(2000)) }

// says compares what a call ended with.
func (r *run) says(call string, err error, want ...guestwire.Code) {
	r.t.Helper()
	got := guestwire.Code("")
	var refusal *guestwire.Error
	if errors.As(err, &refusal) {
		got = refusal.Code
	} else if err != nil {
		r.t.Fatalf("%s: %v", call, err)
	}
	name, _, _ := strings.Cut(call, " ")
	r.calls[strings.TrimSpace(name+" "+string(got))]++
	if !slices.Contains(want, got) {
		r.t.Fatalf("%s: %q, want %q", call, got, want)
	}
}

// is compares an entry.
func (r *run) is(call string, entry guestwire.Entry, name string) {
	r.t.Helper()
	n, ok := r.m[name]
	want := guestwire.Entry{Path: path.Join("/workspace", name), Type: guestwire.TypeFile, Size: int64(len(n.text)), Mode: fmt.Sprintf("%04o", n.mode)}
	if n.dir {
		want.Type, want.Size = guestwire.TypeDirectory, entry.Size
	}
	if !ok || entry.Path != want.Path || entry.Type != want.Type || entry.Size != want.Size || entry.Mode != want.Mode && name != "." {
		r.t.Fatalf("%s: %+v, want %+v", call, entry, want)
	}
}

func (r *run) write() {
	name, mode, text := r.name(), r.mode(), r.text()
	entry, err := r.b.WriteFile(r.t.Context(), name, mode, strings.NewReader(text))
	call := fmt.Sprintf("write %q", name)
	if n, _, through := r.m.at(name); through || n.dir {
		r.says(call, err, guestwire.NotAFile)
		return
	}
	r.says(call, err, "")
	r.m.put(name, node{mode: mode, text: text})
	r.is(call, entry, name)
}

func (r *run) append() {
	name, mode, text := r.known(), r.mode(), r.text()
	n, ok, through := r.m.at(name)
	at := int64(len(n.text))
	if r.rng.IntN(5) == 0 {
		at = r.rng.Int64N(3000)
	}
	entry, err := r.b.AppendFile(r.t.Context(), name, at, mode, strings.NewReader(text))
	call := fmt.Sprintf("append %q at %d", name, at)
	switch {
	case through, n.dir:
		r.says(call, err, guestwire.NotAFile)
	case !ok && at > 0:
		r.says(call, err, guestwire.FileNotFound)
	case at != int64(len(n.text)):
		r.says(call, err, guestwire.Conflict)
	default:
		if !ok {
			n.mode = mode
		}
		n.text += text
		r.says(call, err, "")
		r.m.put(name, n)
		r.is(call, entry, name)
	}
}

func (r *run) read() {
	name := r.known()
	part := guestwire.Range{Offset: r.rng.Int64N(4000) - 2000, Length: r.rng.Int64N(3000) - 1000}
	if r.rng.IntN(2) == 0 {
		part = guestwire.Whole
	}
	body, info, err := r.b.ReadFile(r.t.Context(), name, part)
	call := fmt.Sprintf("read %q %+v", name, part)
	n, ok, _ := r.m.at(name)
	size := int64(len(n.text))
	switch {
	case !ok:
		r.says(call, err, guestwire.FileNotFound)
	case n.dir:
		r.says(call, err, guestwire.NotAFile)
	case part.Offset > 0 && part.Offset >= size:
		r.says(call, err, guestwire.RangeInvalid)
	default:
		r.says(call, err, "")
		got, err := io.ReadAll(body)
		body.Close()
		from := part.Offset
		if from < 0 {
			from = max(0, size+from)
		}
		want := n.text[from:]
		if part.Length >= 0 {
			want = want[:min(part.Length, int64(len(want)))]
		}
		if string(got) != want || err != nil || info.Offset != from || info.Size != size {
			r.t.Fatalf("%s: %d bytes %v %+v, want %d", call, len(got), err, info, len(want))
		}
	}
}

func (r *run) makeDir() {
	name, mode := r.name(), r.mode()
	entry, err := r.b.MakeDir(r.t.Context(), name, mode)
	call := fmt.Sprintf("mkdir %q", name)
	n, ok, through := r.m.at(name)
	if through || ok && !n.dir {
		r.says(call, err, guestwire.Exists)
		return
	}
	r.says(call, err, "")
	if !ok {
		r.m.put(name, node{dir: true, mode: mode})
	}
	r.is(call, entry, name)
}

func (r *run) stat() {
	name := r.known()
	entry, err := r.b.Stat(r.t.Context(), name)
	call := fmt.Sprintf("stat %q", name)
	if _, ok, _ := r.m.at(name); !ok {
		r.says(call, err, guestwire.FileNotFound)
		return
	}
	r.says(call, err, "")
	r.is(call, entry, name)
}

func (r *run) remove() {
	name, recursive := r.known(), r.rng.IntN(2) == 0
	removed, err := r.b.Remove(r.t.Context(), name, recursive)
	call := fmt.Sprintf("remove %q %v", name, recursive)
	_, ok, _ := r.m.at(name)
	held := r.m.beneath(name)
	switch {
	case !ok:
		r.says(call, err, guestwire.FileNotFound)
	case len(held) > 0 && !recursive:
		r.says(call, err, guestwire.NotEmpty)
	default:
		r.says(call, err, "")
		for _, gone := range append(held, name) {
			delete(r.m, gone)
		}
		if removed.Entries != int64(len(held)+1) {
			r.t.Fatalf("%s: %d entries, want %d", call, removed.Entries, len(held)+1)
		}
	}
}

func (r *run) move() {
	from, to, replace := r.known(), r.known(), r.rng.IntN(2) == 0
	entry, err := r.b.Move(r.t.Context(), guestwire.Move{From: from, To: to, Replace: replace})
	call := fmt.Sprintf("move %q to %q %v", from, to, replace)
	one, okFrom, throughFrom := r.m.at(from)
	other, okTo, throughTo := r.m.at(to)
	above := func(name string) bool { _, ok, _ := r.m.at(path.Dir(name)); return ok }
	switch {
	case throughFrom:
		r.says(call, err, guestwire.NotAFile)
	case !above(from):
		r.says(call, err, guestwire.FileNotFound)
	case throughTo:
		r.says(call, err, guestwire.NotAFile)
	case !above(to), !okFrom:
		r.says(call, err, guestwire.FileNotFound)
	case strings.HasPrefix(to, from+"/") && okTo && !replace:
		r.says(call, err, guestwire.BadRequest, guestwire.Exists) // both are true
	case strings.HasPrefix(to, from+"/"):
		r.says(call, err, guestwire.BadRequest)
	case okTo && !replace:
		r.says(call, err, guestwire.Exists)
	case from == to:
		r.says(call, err, "")
	case strings.HasPrefix(from, to+"/"):
		r.says(call, err, guestwire.NotEmpty)
	case okTo && one.dir && !other.dir:
		r.says(call, err, guestwire.NotAFile)
	case okTo && !one.dir && other.dir:
		r.says(call, err, guestwire.Exists)
	case okTo && other.dir && len(r.m.beneath(to)) > 0:
		r.says(call, err, guestwire.NotEmpty)
	default:
		r.says(call, err, "")
		for _, name := range append(r.m.beneath(from), from) {
			r.m[to+strings.TrimPrefix(name, from)] = r.m[name]
			delete(r.m, name)
		}
		r.is(call, entry, to)
	}
}

func (r *run) list() {
	list := guestwire.List{Path: r.known(), Depth: 1 + r.rng.IntN(4), Limit: 1 + r.rng.IntN(12)}
	if r.rng.IntN(3) == 0 {
		list.Path = "."
	}
	if r.rng.IntN(2) == 0 {
		list.After = r.name()
	}
	entries, more, err := r.b.List(r.t.Context(), list)
	call := fmt.Sprintf("list %+v", list)
	n, ok, through := r.m.at(list.Path)
	switch {
	case through, ok && !n.dir:
		r.says(call, err, guestwire.BadDirectory)
		return
	case !ok:
		r.says(call, err, guestwire.FileNotFound)
		return
	}
	r.says(call, err, "")
	var want []string
	for _, name := range r.m.beneath(list.Path) {
		relative := name
		if list.Path != "." {
			relative = strings.TrimPrefix(name, list.Path+"/")
		}
		if strings.Count(relative, "/") < list.Depth && (list.After == "" || guestwire.ComparePaths(relative, list.After) > 0) {
			want = append(want, name)
		}
	}
	if len(entries) != min(len(want), list.Limit) || more != (len(want) > list.Limit) {
		r.t.Fatalf("%s: %d entries, more %v, want %q", call, len(entries), more, want)
	}
	for i, entry := range entries {
		r.is(call, entry, want[i])
	}
}

func (r *run) batch() {
	var files []guestwire.NewFile
	for range r.rng.IntN(5) {
		name := r.name()
		if !slices.ContainsFunc(files, func(f guestwire.NewFile) bool {
			return strings.HasPrefix(f.Path+"/", name+"/") || strings.HasPrefix(name+"/", f.Path+"/")
		}) {
			files = append(files, guestwire.NewFile{Path: name, Mode: r.mode(), Content: []byte(r.text())})
		}
	}
	entries, err := r.b.WriteFiles(r.t.Context(), files)
	call := fmt.Sprintf("batch of %d", len(files))
	for _, file := range files {
		if n, _, through := r.m.at(file.Path); through || n.dir {
			r.says(call, err, guestwire.NotAFile)
			return
		}
	}
	r.says(call, err, "")
	for i, file := range files {
		r.m.put(file.Path, node{mode: file.Mode, text: string(file.Content)})
		r.is(call, entries[i], file.Path)
	}
}

func (r *run) unpack() {
	to := r.known()
	var members []member
	for range r.rng.IntN(6) {
		if r.rng.IntN(3) == 0 {
			members = append(members, member{tar.Header{Name: r.name() + "/", Typeflag: tar.TypeDir, Mode: int64(r.mode() | 0o700)}, ""})
		} else {
			members = append(members, member{tar.Header{Name: r.name(), Mode: int64(r.mode())}, r.text()})
		}
	}
	data := makeTar(r.t, members...)
	_, err := r.b.WriteArchive(r.t.Context(), to, false, false, bytes.NewReader(data))
	call := fmt.Sprintf("unpack %d into %q", len(members), to)
	if n, ok, through := r.m.at(to); through || ok && !n.dir {
		r.says(call, err, guestwire.BadDirectory)
		return
	} else if !ok {
		r.m.put(to, node{dir: true, mode: 0o755})
	}
	for _, m := range members {
		name := path.Join(to, m.Name)
		n, ok, through := r.m.at(name)
		isDir := m.Typeflag == tar.TypeDir
		switch {
		case through, isDir && ok && !n.dir:
			r.says(call, err, guestwire.Exists)
			return
		case !isDir && n.dir:
			r.says(call, err, guestwire.NotAFile)
			return
		}
		r.m.put(name, node{dir: isDir, mode: uint32(m.Mode), text: m.text})
	}
	r.says(call, err, "")
}

func (r *run) pack() {
	name := r.known()
	call := fmt.Sprintf("pack %q", name)
	n, ok, _ := r.m.at(name)
	if !ok {
		_, err := r.b.ReadArchive(r.t.Context(), name, false, "")
		r.says(call, err, guestwire.FileNotFound)
		return
	}
	members, _ := r.b.pack(r.t, name, r.rng.IntN(2) == 0, "")
	r.says(call, nil, "")
	want := append([]string{name}, r.m.beneath(name)...)
	if len(members) != len(want) {
		r.t.Fatalf("%s: %d members, want %q", call, len(members), want)
	}
	for i, m := range members {
		got := path.Join(name, m.Name)
		if !n.dir {
			got = path.Join(path.Dir(name), m.Name)
		}
		if wanted := r.m[want[i]]; got != want[i] || uint32(m.Mode) != wanted.mode || m.text != wanted.text || (m.Typeflag == tar.TypeDir) != wanted.dir {
			r.t.Fatalf("%s: %+v, want %q %+v", call, m.Header, want[i], wanted)
		}
	}
}

// same compares the whole tree on the disk.
func (r *run) same(after string) {
	r.t.Helper()
	got := model{".": r.m["."]}
	must(r.t, filepath.WalkDir(r.b.work(""), func(name string, entry os.DirEntry, err error) error {
		must(r.t, err)
		relative, err := filepath.Rel(r.b.work(""), name)
		must(r.t, err)
		if relative == "." {
			return nil
		}
		info, err := entry.Info()
		must(r.t, err)
		n := node{dir: entry.IsDir(), mode: uint32(info.Mode().Perm())}
		if !n.dir {
			data, err := os.ReadFile(name)
			must(r.t, err)
			n.text = string(data)
		}
		got[relative] = n
		return nil
	}))
	for name, n := range r.m {
		if got[name] != n {
			r.t.Fatalf("after %s: %q is %.60v, want %.60v", after, name, got[name], n)
		}
	}
	if len(got) != len(r.m) {
		r.t.Fatalf("after %s: %q, want %q", after, got.beneath("."), r.m.beneath("."))
	}
}

// Whatever calls come in whatever order, the guest's files are those of a model in
// memory: 3,000 calls, the tree on the disk compared after each that changes it.
func TestFilesFollowAModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := &run{t: t, b: newBox(t), m: model{".": {dir: true, mode: 0o755}}, rng: rand.New(rand.NewPCG(seed, 6)), calls: map[string]int{}}
			for range 500 {
				n := r.rng.IntN(20)
				do, change := []struct {
					name string
					call func()
				}{
					{"write", r.write},
					{"write", r.write},
					{"write", r.write},
					{"append", r.append},
					{"append", r.append},
					{"mkdir", r.makeDir},
					{"mkdir", r.makeDir},
					{"remove", r.remove},
					{"remove", r.remove},
					{"move", r.move},
					{"move", r.move},
					{"move", r.move},
					{"batch", r.batch},
					{"unpack", r.unpack},
					{"read", r.read},
					{"read", r.read},
					{"stat", r.stat},
					{"list", r.list},
					{"list", r.list},
					{"pack", r.pack},
				}[n], n < 14
				do.call()
				if change {
					r.same(do.name)
				}
			}
			if seed == 0 {
				t.Log(r.calls)
			}
		})
	}
}
