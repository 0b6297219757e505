package guest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// member is one of an archive.
type member struct {
	tar.Header
	text string
}

func makeTar(t testing.TB, members ...member) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, m := range members {
		if m.Typeflag == 0 {
			m.Typeflag = tar.TypeReg
		}
		if m.Mode == 0 && m.Typeflag != tar.TypeXGlobalHeader {
			m.Mode = 0o644
		}
		m.Size = int64(len(m.text))
		must(t, w.WriteHeader(&m.Header))
		_, err := io.WriteString(w, m.text)
		must(t, err)
	}
	must(t, w.Close())
	return out.Bytes()
}

func plain(name, text string) member { return member{tar.Header{Name: name}, text} }

func squeeze(t testing.TB, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(data)
	must(t, errors.Join(err, w.Close()))
	return out.Bytes()
}

// pack reads an archive of the guest.
func (b *box) pack(t testing.TB, path string, zipped bool, after string) (members []member, raw []byte) {
	t.Helper()
	body, err := b.ReadArchive(t.Context(), path, zipped, after)
	must(t, err)
	defer body.Close()
	raw, err = io.ReadAll(body)
	must(t, err)
	in := io.Reader(bytes.NewReader(raw))
	if zipped {
		in, err = gzip.NewReader(in)
		must(t, err)
	}
	archive := tar.NewReader(in)
	for {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return members, raw
		}
		must(t, err)
		text, err := io.ReadAll(archive)
		must(t, err)
		members = append(members, member{*head, string(text)})
	}
}

func (b *box) unpack(t testing.TB, path string, data []byte, zipped, keep bool) (guestwire.Unpacked, error) {
	t.Helper()
	return b.WriteArchive(t.Context(), path, zipped, keep, bytes.NewReader(data))
}

// census is all that a tree is: names, types, modes, owners, times, links, content.
func census(t testing.TB, root string, owners bool) string {
	t.Helper()
	var all []string
	inodes := map[uint64]string{}
	must(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var stat unix.Stat_t
		must(t, unix.Lstat(path, &stat))
		name := strings.TrimPrefix(path, root)
		text := ""
		switch typeOf(stat.Mode) {
		case guestwire.TypeFile:
			data, err := os.ReadFile(path)
			must(t, err)
			text = fmt.Sprintf("%x", data)
		case guestwire.TypeSymlink:
			text, err = os.Readlink(path)
			must(t, err)
		}
		if first, ok := inodes[stat.Ino]; ok {
			text = "as " + first
		}
		inodes[stat.Ino] = name
		if !owners {
			stat.Uid, stat.Gid = 0, 0
		}
		all = append(all, fmt.Sprintf("%q %o %d:%d %d %q", name, stat.Mode, stat.Uid, stat.Gid, stat.Mtim.Nano(), text))
		return nil
	}))
	return strings.Join(all, "\n")
}

// plant makes a tree with everything in it that an archive keeps.
func (b *box) plant(t testing.TB, root string) {
	t.Helper()
	b.put(t, root+"/file", "content")
	b.put(t, root+"/empty", "")
	b.put(t, root+"/sub/deep/er/large", string(pattern(0, 0, 300_000)))
	b.put(t, root+"/not \xff\xfe UTF-8/\x80", "x")
	b.put(t, root+"/"+strings.Repeat("long/", 60)+strings.Repeat("n", 255), "long")
	b.put(t, root+"/set", "uid")
	must(t, os.Mkdir(b.work(root+"/hollow"), 0o755))
	must(t, os.Symlink("../else\xffwhere", b.work(root+"/link")))
	must(t, os.Symlink("/"+strings.Repeat("t", 200), b.work(root+"/sub/long link")))
	must(t, os.Link(b.work(root+"/file"), b.work(root+"/sub/hard")))
	must(t, os.Chown(b.work(root+"/set"), 4321, 1234))
	must(t, os.Lchown(b.work(root+"/link"), 77, 78))
	must(t, os.Chown(b.work(root+"/hollow"), 5, 3_000_000_000))
	must(t, os.Chmod(b.work(root+"/set"), 0o755|fs.ModeSetuid|fs.ModeSetgid))
	must(t, os.Chmod(b.work(root+"/hollow"), 0o711|fs.ModeSticky))
	must(t, os.Chmod(b.work(root+"/sub"), 0o500))
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: -1000, Nsec: 5}}
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, b.work(root+"/link"), times, unix.AT_SYMLINK_NOFOLLOW))
	i := 0
	must(t, filepath.WalkDir(b.work(root), func(path string, entry fs.DirEntry, err error) error {
		if i++; err == nil && entry.Type() != fs.ModeSymlink {
			defer func() { _ = os.Chtimes(path, time.Time{}, time.Unix(1_000_000_000+int64(i), int64(i))) }()
		}
		return err
	}))
}

// A tree that is packed and unpacked is the same tree.
func TestArchiveRoundTrip(t *testing.T) {
	t.Parallel()
	b := newUserBox(t)
	b.plant(t, "tree")
	want := census(t, b.work("tree"), true)
	for _, zipped := range []bool{false, true} {
		members, raw := b.pack(t, "tree", zipped, "")
		to := fmt.Sprint("new/parent/", zipped)
		sums, err := b.unpack(t, to, raw, zipped, true)
		if err != nil || sums.Entries != int64(len(members)) || sums.Bytes != 7+300_000+1+4+3 {
			t.Errorf("%+v %v, %d members", sums, err, len(members))
		}
		if got := census(t, b.work(to), true); got != want {
			t.Errorf("was:\n%.3000s\nis:\n%.3000s", want, got)
		}
		// Once more over itself.
		if _, err := b.unpack(t, to, raw, zipped, true); err != nil {
			t.Error(err)
		}
		if got := census(t, b.work(to), true); got != want {
			t.Errorf("again, was:\n%.3000s\nis:\n%.3000s", want, got)
		}
	}
	for _, name := range []string{"new", "new/parent"} {
		if info, err := os.Stat(b.work(name)); err != nil || info.Sys().(*syscall.Stat_t).Uid != 12345 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
}

// Without owners all belongs to the default user, and nothing is setuid.
func TestUnpackForTheUser(t *testing.T) {
	t.Parallel()
	b := newUserBox(t)
	b.plant(t, "tree")
	_, raw := b.pack(t, "tree", false, "")
	must(t, os.Mkdir(b.work("to"), 0o755))
	must(t, os.Mkdir(b.work("to/hollow"), 0o755))
	if _, err := b.unpack(t, "to", raw, false, false); err != nil {
		t.Fatal(err)
	}
	must(t, filepath.WalkDir(b.work("to"), func(path string, _ fs.DirEntry, err error) error {
		must(t, err)
		var stat unix.Stat_t
		must(t, unix.Lstat(path, &stat))
		want := uint32(12345)
		if path == b.work("to") || path == b.work("to/hollow") {
			want = 0 // was there before
		}
		if stat.Uid != want || stat.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
			t.Errorf("%s: %d:%d %o", path, stat.Uid, stat.Gid, stat.Mode)
		}
		return nil
	}))
	if info, err := os.Stat(b.work("to/set")); err != nil || info.Mode() != 0o755 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

// What an archive says of its members.
func TestPack(t *testing.T) {
	t.Parallel()
	b := newUserBox(t)
	b.put(t, "d/b", "bb")
	b.put(t, "d/a/x", "x")
	b.put(t, "d/a.b", "")
	must(t, syscall.Mkfifo(b.work("d/fifo"), 0o600))
	must(t, unix.Mknod(b.work("d/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	must(t, unix.Mknod(b.work("d/disk"), unix.S_IFBLK|0o660, int(unix.Mkdev(254, 300))))
	must(t, unix.Mknod(b.work("d/socket"), unix.S_IFSOCK|0o600, 0))
	must(t, os.Chown(b.work("d/b"), 12345, 12347))
	must(t, os.Symlink("d", b.work("to")))
	must(t, os.Symlink("d/b", b.work("tofile")))
	list := func(path, after string) (names []string) {
		members, _ := b.pack(t, path, false, after)
		for _, m := range members {
			names = append(names, m.Name)
		}
		return names
	}
	all := []string{"./", "a/", "a/x", "a.b", "b", "disk", "fifo", "null"}
	for _, c := range []struct {
		path, after string
		want        []string
	}{
		{"d", "", all},
		{"to", "", all},
		{"/workspace/d/", "a/x", all[3:]},
		{"d", "a", all[2:]},
		{"d", "b", all[5:]},
		{"d", "a/nothing", all[2:]},
		{"d", "zzz", nil},
		{"d/b", "", []string{"b"}},
		{"tofile", "", []string{"tofile"}},
		{"d/fifo", "", []string{"fifo"}},
		{"d/a", "", []string{"./", "x"}},
	} {
		if names := list(c.path, c.after); !slices.Equal(names, c.want) {
			t.Errorf("%s after %q: %q, want %q", c.path, c.after, names, c.want)
		}
	}
	members, _ := b.pack(t, "d", true, "")
	for _, m := range members {
		var stat unix.Stat_t
		must(t, unix.Lstat(b.work("d/"+m.Name), &stat))
		if m.Uid != int(stat.Uid) || m.Mode != int64(stat.Mode&0o7777) || m.ModTime.UnixNano() != stat.Mtim.Nano() {
			t.Errorf("%+v, is %+v", m, stat)
		}
		if m.Name == "b" && (m.Uname != "user" || m.Gname != "extra" || m.text != "bb") {
			t.Errorf("%+v", m)
		}
		if m.Name == "disk" && (m.Typeflag != tar.TypeBlock || m.Devmajor != 254 || m.Devminor != 300) {
			t.Errorf("%+v", m)
		}
	}
	for path, want := range map[string]guestwire.Code{
		"none": guestwire.FileNotFound, "d/socket": guestwire.NotAFile, "": guestwire.BadRequest, "d/b/x": guestwire.FileNotFound,
	} {
		if _, err := b.ReadArchive(t.Context(), path, false, ""); !guestwire.Refused(err, want) {
			t.Errorf("%q: %v, want %s", path, err, want)
		}
	}
	if _, err := b.ReadArchive(t.Context(), "d", false, "../x"); !guestwire.Refused(err, guestwire.BadRequest) {
		t.Errorf("after: %v", err)
	}
	// The kernel's own file systems are there, and nothing of what they show.
	root := newBox(t)
	must(t, os.Symlink("/proc/self", filepath.Join(root.root, "workspace/proc")))
	members, _ = root.pack(t, ".", false, "")
	if len(members) != 2 || members[1].Typeflag != tar.TypeSymlink {
		t.Errorf("%+v", members)
	}
	proc, err := os.Open("/proc")
	must(t, err)
	defer proc.Close()
	if holdsFiles(proc, nil) {
		t.Error("/proc holds files")
	}
}

// A file that becomes shorter while it is packed breaks the archive: nobody takes
// it for whole.
func TestPackOfWhatShrinks(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put(t, "f", "")
	must(t, os.Truncate(b.work("f"), 64<<20))
	body, err := b.ReadArchive(t.Context(), ".", false, "")
	must(t, err)
	defer body.Close()
	_, err = io.ReadFull(body, make([]byte, 100_000))
	must(t, err)
	must(t, os.Truncate(b.work("f"), 1<<20))
	if n, err := io.Copy(io.Discard, body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// Every member that would lead out of the directory, or is no file, is refused by
// its name. What came before it stays.
func TestHostileMembers(t *testing.T) {
	t.Parallel()
	outside, unchanged := guarded(t, "x", "secret/key", "workspace/x")
	link := func(name, to string) member {
		return member{tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}, ""}
	}
	hard := func(name, to string) member {
		return member{tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}, ""}
	}
	kind := func(name string, kind byte) member { return member{tar.Header{Name: name, Typeflag: kind}, ""} }
	for name, c := range map[string]struct {
		before []member
		last   member
		want   guestwire.Code
	}{
		"up":                            {nil, plain("../x", "bad"), guestwire.UnsafeMember},
		"up in the middle":              {nil, plain("a/../../x", "bad"), guestwire.UnsafeMember},
		"up that stays":                 {nil, plain("a/../x", "bad"), guestwire.UnsafeMember},
		"absolute":                      {nil, plain(outside+"/x", "bad"), guestwire.UnsafeMember},
		"directory up":                  {nil, kind("..", tar.TypeDir), guestwire.UnsafeMember},
		"absolute directory":            {nil, kind("/", tar.TypeDir), guestwire.UnsafeMember},
		"link up":                       {nil, link("../x", "y"), guestwire.UnsafeMember},
		"itself":                        {nil, plain(".", "bad"), guestwire.UnsafeMember},
		"no name":                       {nil, link("", "y"), guestwire.UnsafeMember},
		"through a link that was there": {nil, plain("planted/x", "bad"), guestwire.UnsafeMember},
		"directory through it":          {nil, kind("planted/secret/new", tar.TypeDir), guestwire.UnsafeMember},
		"directory that is a link":      {nil, kind("planted", tar.TypeDir), guestwire.UnsafeMember},
		"through an earlier link":       {[]member{link("l", outside)}, plain("l/x", "bad"), guestwire.UnsafeMember},
		"through a relative link":       {[]member{kind("d", tar.TypeDir), link("d/l", "../../..")}, plain("d/l/x", "bad"), guestwire.UnsafeMember},
		"through two links":             {[]member{link("l", "m"), link("m", outside)}, plain("l/secret/x", "bad"), guestwire.UnsafeMember},
		"link through a link":           {[]member{link("l", outside)}, link("l/y", "x"), guestwire.UnsafeMember},
		"hard link up":                  {nil, hard("h", "../x"), guestwire.UnsafeMember},
		"absolute hard link":            {nil, hard("h", outside+"/x"), guestwire.UnsafeMember},
		"hard link through a link":      {[]member{link("l", outside)}, hard("h", "l/x"), guestwire.UnsafeMember},
		"hard link to a FIFO":           {nil, hard("h", "fifo"), guestwire.UnsafeMember},
		"hard link to a directory":      {[]member{kind("d", tar.TypeDir)}, hard("h", "d"), guestwire.UnsafeMember},
		"hard link to nothing":          {nil, hard("h", "nothing"), guestwire.FileNotFound},
		"device":                        {nil, kind("null", tar.TypeChar), guestwire.UnsafeMember},
		"disk":                          {nil, kind("disk", tar.TypeBlock), guestwire.UnsafeMember},
		"FIFO":                          {nil, kind("pipe", tar.TypeFifo), guestwire.UnsafeMember},
		"file where a FIFO is":          {nil, plain("fifo", "bad"), guestwire.NotAFile},
		"file where a directory is":     {nil, plain("there", "bad"), guestwire.NotAFile},
		"directory where a file is":     {nil, kind("file", tar.TypeDir), guestwire.Exists},
		"beneath a file":                {nil, plain("file/x", "bad"), guestwire.Exists},
		"link without a target":         {nil, link("l", ""), guestwire.BadRequest},
		"name that is too long":         {nil, plain(strings.Repeat("a", 300), "bad"), guestwire.BadRequest},
		"path that is too long":         {nil, plain(strings.Repeat("a/", 2100)+"x", "bad"), guestwire.UnsafeMember},
	} {
		b := newBox(t)
		b.put(t, "to/file", "file")
		must(t, os.Mkdir(b.work("to/there"), 0o755))
		must(t, syscall.Mkfifo(b.work("to/fifo"), 0o600))
		must(t, os.Symlink(outside, b.work("to/planted")))
		around := census(t, b.root, true)
		data := makeTar(t, append(append([]member{plain("first", "first")}, c.before...), c.last)...)
		_, err := b.unpack(t, "to", data, false, false)
		if !guestwire.Refused(err, c.want) || detail(err) != c.last.Name[:min(len(c.last.Name), guestwire.MaxDetail)] {
			t.Errorf("%s: %v, want %s; detail %q", name, err, c.want, detail(err))
		}
		b.holds(t, "to/first", "first")
		must(t, os.Remove(b.work("to/first")))
		for _, m := range c.before {
			must(t, os.RemoveAll(b.work("to/"+strings.Split(m.Name, "/")[0])))
		}
		if got := census(t, b.root, true); strings.Count(got, "\n") != strings.Count(around, "\n") {
			t.Errorf("%s: left behind\n%s\nwas\n%s", name, got, around)
		}
		unchanged()
	}
}

// Links that stay in the directory are followed, and a directory that is there
// keeps its owner.
func TestUnpackThroughLinksThatStay(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	data := makeTar(t,
		member{tar.Header{Name: "usr/bin/", Typeflag: tar.TypeDir, Mode: 0o755}, ""},
		member{tar.Header{Name: "bin", Typeflag: tar.TypeSymlink, Linkname: "usr/bin"}, ""},
		member{tar.Header{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o700}, ""},
		plain("bin/tool", "tool"),
		plain("./implied/dir/file", "x"),
		member{tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "of git"}}, ""},
		member{tar.Header{Name: "bin/same", Typeflag: tar.TypeLink, Linkname: "usr/bin/tool"}, ""},
		member{tar.Header{Name: "bin/same", Typeflag: tar.TypeLink, Linkname: "bin/tool"}, ""},
	)
	sums, err := b.unpack(t, ".", data, false, false)
	if err != nil || sums != (guestwire.Unpacked{Entries: 8, Bytes: 5}) {
		t.Errorf("%+v %v", sums, err)
	}
	b.holds(t, "usr/bin/tool", "tool")
	b.holds(t, "usr/bin/same", "tool")
	b.holds(t, "implied/dir/file", "x")
	if info, err := os.Lstat(b.work("usr/bin")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("%v %v", info, err)
	}
	if names := truths(t, b.work(""), 9); len(names) != 8 {
		t.Errorf("%q", names)
	}
}

func TestUnpackRefusals(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put(t, "file", "x")
	good := makeTar(t, plain("a", "a"))
	for name, c := range map[string]struct {
		path   string
		data   []byte
		zipped bool
		want   guestwire.Code
	}{
		"into a file":         {"file", good, false, guestwire.BadDirectory},
		"beneath a file":      {"file/x", good, false, guestwire.BadDirectory},
		"no path":             {"", good, false, guestwire.BadRequest},
		"no archive":          {"to", bytes.Repeat([]byte("no archive"), 1000), false, guestwire.BadRequest},
		"not compressed":      {"to", good, true, guestwire.BadRequest},
		"compressed":          {"to", squeeze(t, good), false, guestwire.BadRequest},
		"cut in the file":     {"to", makeTar(t, plain("a", strings.Repeat("a", 5000)))[:1024], false, guestwire.BadRequest},
		"cut in the header":   {"to", good[:100], false, guestwire.BadRequest},
		"cut compressed":      {"to", squeeze(t, good)[:30], true, guestwire.BadRequest},
		"wrong sum":           {"to", append(squeeze(t, good)[:len(squeeze(t, good))-8], 1, 2, 3, 4, 5, 6, 7, 8), true, guestwire.BadRequest},
		"junk after the gzip": {"to", append(squeeze(t, good), "junk"...), true, guestwire.BadRequest},
	} {
		if _, err := b.unpack(t, c.path, c.data, c.zipped, false); !guestwire.Refused(err, c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	for name, data := range map[string][]byte{"nothing": nil, "only an end": make([]byte, 1024), "padding": append(makeTar(t), make([]byte, 9000)...)} {
		if sums, err := b.unpack(t, "to", data, false, false); err != nil || sums.Entries != 0 {
			t.Errorf("%s: %+v %v", name, sums, err)
		}
	}
	names, err := filepath.Glob(b.work("to/*"))
	if err != nil || len(names) > 1 {
		t.Errorf("%q %v", names, err)
	}
}

// A full disk, or a body that breaks off, leaves files that are whole: what was
// there before, or what came.
func TestUnpackIsWholeFiles(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put(t, "to/old", "old")
	data := makeTar(t, plain("first", "first"), member{tar.Header{Name: "dir/", Typeflag: tar.TypeDir, Mode: 0o500}, ""},
		plain("dir/x", "x"), plain("old", strings.Repeat("new", 100_000)))
	check := func() {
		t.Helper()
		b.holds(t, "to/old", "old")
		b.holds(t, "to/first", "first")
		b.holds(t, "to/dir/x", "x")
		if names := truths(t, b.work("to"), 9); len(names) != 4 {
			t.Errorf("%q", names)
		}
		if info, err := os.Stat(b.work("to/dir")); err != nil || info.Mode().Perm() != 0o500 {
			t.Errorf("%v %v", info, err)
		}
	}
	b.fillsUp(100_000)
	if _, err := b.unpack(t, "to", data, false, false); !guestwire.Refused(err, guestwire.DiskFull) || detail(err) != "old" {
		t.Errorf("full disk: %v", err)
	}
	check()
	b.agent.fill = fill
	if _, err := b.unpack(t, "to", data[:len(data)-200_000], false, false); !guestwire.Refused(err, guestwire.BadRequest) {
		t.Errorf("cut: %v", err)
	}
	check()
	broken := io.MultiReader(bytes.NewReader(data[:100_000]), failing{})
	if _, err := b.WriteArchive(t.Context(), "to", false, false, broken); err == nil {
		t.Error("broken: no error")
	}
	must(t, b.agent.Close())
	check()
}

// A program that swaps directories for links while an archive is unpacked gets
// nothing written, made, linked or changed outside.
func TestUnpackBesideASwapper(t *testing.T) {
	t.Parallel()
	outside, unchanged := guarded(t, "x", "sub/0", "sub/y/0")
	var members []member
	for i := range 40 {
		members = append(members,
			member{tar.Header{Name: "sub/", Typeflag: tar.TypeDir, Mode: 0o711}, ""},
			plain(fmt.Sprintf("sub/%d", i), "inside"),
			member{tar.Header{Name: "sub/y/", Typeflag: tar.TypeDir, Mode: 0o711}, ""},
			plain(fmt.Sprintf("sub/y/%d", i), "inside"),
			member{tar.Header{Name: fmt.Sprintf("sub/l%d", i), Typeflag: tar.TypeSymlink, Linkname: "x"}, ""},
			member{tar.Header{Name: fmt.Sprintf("h%d", i), Typeflag: tar.TypeLink, Linkname: "sub/0"}, ""},
			member{tar.Header{Name: fmt.Sprintf("sub/h%d", i), Typeflag: tar.TypeLink, Linkname: "plain"}, ""})
	}
	members = append([]member{plain("plain", "inside"), plain("sub/0", "inside")}, members...)
	data := makeTar(t, members...)
	b := newUserBox(t)
	refused, whole := 0, 0
	for round := range 40 {
		must(t, os.MkdirAll(b.work("to/sub/y"), 0o755))
		b.put(t, "to/sub/0", "inside")
		must(t, os.Symlink(filepath.Join(outside, "sub"), b.work("to/swap")))
		stop := swapper(5000, [2]string{b.work("to/sub"), b.work("to/swap")})
		_, err := b.unpack(t, "to", data, false, true)
		stop()
		switch {
		case err == nil:
			whole++
		case guestwire.Refused(err, guestwire.UnsafeMember):
			refused++
		default:
			if detail(err) == "" { // something was elsewhere when it was looked for
				t.Errorf("round %d: %v", round, err)
			}
		}
		unchanged()
		// What is linked inside is never a file of outside.
		links, err := filepath.Glob(b.work("to/h*"))
		must(t, err)
		for _, path := range links {
			if data, err := os.ReadFile(path); err != nil || string(data) != "inside" {
				t.Fatalf("%s: %q %v", path, data, err)
			}
		}
		must(t, os.RemoveAll(b.work("to")))
	}
	t.Logf("%d refused, %d whole", refused, whole)
	if refused == 0 {
		t.Error("no swap was in the way")
	}
}

// Whoever reads an archive and leaves ends the work.
func TestPackEndsWithTheClient(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put(t, "f", "")
	must(t, os.Truncate(b.work("f"), 1<<40))
	ctx, cancel := context.WithCancel(t.Context())
	body, err := b.ReadArchive(ctx, ".", true, "")
	must(t, err)
	_, err = io.ReadFull(body, make([]byte, 1000))
	must(t, err)
	cancel()
	body.Close()
	must(t, b.agent.Close()) // waits for the handler
}

// FuzzUnpack: whatever the bytes are, nothing is written outside, and no name of
// the agent's own is left.
func FuzzUnpack(f *testing.F) {
	f.Add(makeTar(f, plain("a/b", "x"), member{tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, ""}, plain("l/x", "y")), false)
	f.Add(squeeze(f, makeTar(f, plain("a", "x"))), true)
	f.Add(makeTar(f, member{tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "../x"}, ""}), false)
	f.Add(makeTar(f, member{tar.Header{Name: strings.Repeat("n", 200), Format: tar.FormatPAX, PAXRecords: map[string]string{"GNU.sparse.major": "1"}}, "x"}), false)
	b := newBox(f)
	b.put(f, "x", "outside")
	f.Fuzz(func(t *testing.T, data []byte, zipped bool) {
		u := &unpack{agent: b.agent, owner: account{same: true}, dirs: make(map[string]attributes)}
		must(t, os.Mkdir(b.work("to"), 0o755))
		root, err := os.OpenRoot(b.work("to"))
		must(t, err)
		u.root = root
		_ = u.read(t.Context(), bytes.NewReader(data), zipped)
		_ = u.finish()
		must(t, root.Close())
		must(t, filepath.WalkDir(b.work("to"), func(path string, _ fs.DirEntry, err error) error {
			if isStaged(filepath.Base(path)) {
				t.Errorf("left behind: %s", path)
			}
			return err
		}))
		must(t, os.RemoveAll(b.work("to")))
		b.holds(t, "x", "outside")
		b.onlyFiles(t, "x")
	})
}
