package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"github.com/microvmd/microvm/internal/fault"
)

// check has e2fsck, which did not write it, look at a file system.
func checkExt4(t testing.TB, path string) {
	t.Helper()
	out, err := exec.Command("e2fsck", "-fn", path).CombinedOutput()
	// The writer leaves the bits behind a group's last inode at 0. Nothing reads them.
	said := strings.ReplaceAll(string(out), "Padding at end of inode bitmap is not set. Fix? no", "")
	for line := range strings.SplitSeq(said, "\n") {
		if line != "" && !strings.HasPrefix(line, "Pass ") && !strings.HasPrefix(line, "e2fsck ") && !strings.HasPrefix(line, path+": ") && !strings.HasPrefix(line, "\r") {
			t.Fatalf("e2fsck: %v: %s", err, out)
		}
	}
	if !strings.Contains(said, "Pass 5") {
		t.Fatalf("e2fsck: %v: %s", err, out)
	}
}

// debugfs asks e2fsprogs for what a file system holds.
func debugfs(t testing.TB, path, request string) string {
	t.Helper()
	out, err := exec.Command("debugfs", "-R", request, path).Output()
	if err != nil {
		t.Fatalf("debugfs %s: %v", request, err)
	}
	return string(out)
}

// TestImportKeepsWhatTheTreeHas reads with another program what the writer wrote.
func TestImportKeepsWhatTheTreeHas(t *testing.T) {
	c := newImports(t)
	capability := "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	far := "/" + strings.Repeat("far/", 50) + "away"
	got := bring(t, c, Spec{ID: "mine", User: "user", Env: map[string]string{"A": "b"}, Language: "python", LanguageVersion: "3"},
		member{Header: tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o711, ModTime: moment}},
		dir("etc"), file("etc/passwd", accounts),
		file("usr/lib/deep/a", "one\n").with(func(h *tar.Header) { h.Uid, h.Gid, h.Mode = 70_000, 80_000, 0o4755 }),
		dir("usr/lib").with(func(h *tar.Header) { h.Mode, h.Uid = 0o2750, 42 }), // after what is in it
		hardLink("b", "usr/lib/deep/a"), hardLink("./c", "./usr/lib/deep/a"),
		symlink("near", "../../etc/shadow"), symlink("far", far),
		file("ping", "x").with(attribute("SCHILY.xattr.security.capability", capability)),
		file("note", "").with(attribute("SCHILY.xattr.user.note", strings.Repeat("n", 3000))),
		dir("dev"), member{Header: tar.Header{Name: "dev/null", Typeflag: tar.TypeChar, Mode: 0o666, Devmajor: 1, Devminor: 300}},
		member{Header: tar.Header{Name: "pipe", Typeflag: tar.TypeFifo, Mode: 0o600}},
		file("old", "x").with(func(h *tar.Header) { h.Mode = 0o100600 }),
		file("a name with \n and \xff", "odd\n"),
	)
	checkExt4(t, got.Path)
	want := Image{
		ID: "mine", Language: "python", LanguageVersion: "3", Arch: c.arch, SizeBytes: got.SizeBytes, Digest: got.Digest, Format: "ext4",
		Env: map[string]string{"A": "b"}, Workdir: "/workspace", UID: 1000, GID: 1001, User: "user", Source: Imported, Path: got.Path,
	}
	if found, err := c.Image(t.Context(), "mine"); err != nil || !reflect.DeepEqual(found, want) || !got.New {
		t.Errorf("got %+v, %v\nwant %+v", found, err, want)
	}
	for request, holds := range map[string]string{
		"cat b": "one\n", "cat usr/lib/deep/a": "one\n", "cat etc/passwd": accounts,
		"stat .":              "Mode:  0711",
		"stat c":              "Links: 3",
		"stat usr/lib/deep/a": "Mode:  04755",
		"stat b":              "User: 70000   Group: 80000",
		"stat usr/lib":        "Mode:  02750",
		"stat usr":            "Mode:  0755",
		"stat near":           `Fast link dest: "../../etc/shadow"`,
		"cat far":             far,
		"stat dev/null":       "Device major/minor number: 01:300",
		"stat pipe":           "Type: FIFO",
		"stat old":            "Mode:  0600",
		"stat note":           "user.note (3000)",
		"ea_list ping":        "security.capability (20)",
		"ls /":                "lost+found",
	} {
		if text := debugfs(t, got.Path, request); !strings.Contains(text, holds) {
			t.Errorf("%s: %q, want %q", request, text, holds)
		}
	}
	stat, err := os.Stat(got.Path)
	if err != nil || stat.Mode() != 0o444 {
		t.Error(stat.Mode(), err)
	}
}

// TestSameTreeSameBytes: the digest says what the tree is, not when or how it came.
func TestSameTreeSameBytes(t *testing.T) {
	tree := archive(t, small(
		file("a", "x"), dir("d"), file("d/e", strings.Repeat("y", 10_000)),
		file("x", "").with(func(h *tar.Header) {
			h.PAXRecords = map[string]string{"SCHILY.xattr.user.a": "1", "SCHILY.xattr.user.b": "2", "SCHILY.xattr.user.c": "3"}
		}))...)
	var digests []string
	for range 5 {
		c := newImports(t)
		c.bounds.Bytes += int64(len(digests)) << 20 // the bounds are no part of it
		first, err := c.Import(t.Context(), Spec{ID: "a"}, bytes.NewReader(tree))
		if err != nil {
			t.Fatal(err)
		}
		again, err := c.Import(t.Context(), Spec{ID: "a"}, iotest.OneByteReader(bytes.NewReader(tree)))
		if err != nil || again.New || !reflect.DeepEqual(again.Image, first.Image) {
			t.Errorf("again: %+v, %v", again, err)
		}
		other, err := c.Import(t.Context(), Spec{ID: "b"}, bytes.NewReader(tree))
		if err != nil || !other.New || other.Digest != first.Digest {
			t.Errorf("other name: %+v, %v", other, err)
		}
		digests = append(digests, first.Digest)
	}
	if slices.Sort(digests); len(slices.Compact(digests)) != 1 {
		t.Error(digests)
	}
}

func must(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestWhatATreeSays(t *testing.T) {
	native := func(machine uint16) string {
		return "\x7fELF\x02\x01" + strings.Repeat("\x00", 12) + string([]byte{byte(machine), 0})
	}
	for name, c := range map[string]struct {
		spec    Spec
		members []member
		param   string // "" is fine
	}{
		"defaults":               {Spec{}, small(), ""},
		"no user":                {Spec{User: "nobody"}, small(), "user"},
		"broken user":            {Spec{User: "odd"}, small(), "user"},
		"no accounts":            {Spec{}, []member{file("a", "")}, "user"},
		"accounts are a link":    {Spec{}, []member{file("p", accounts), symlink("etc/passwd", "../p")}, "user"},
		"user of a path":         {Spec{User: "a/b"}, small(), "user"},
		"workdir of the tree":    {Spec{Workdir: "/etc"}, small(), ""},
		"workdir that is not":    {Spec{Workdir: "/srv/x/y"}, small(), ""},
		"workdir is root":        {Spec{Workdir: "/"}, small(), ""},
		"workdir behind a link":  {Spec{Workdir: "/srv/x"}, small(symlink("srv", "etc")), ""},
		"workdir is a file":      {Spec{Workdir: "/etc/passwd"}, small(), "workdir"},
		"workdir beneath a file": {Spec{Workdir: "/etc/passwd/x"}, small(), "workdir"},
		"default is a file":      {Spec{}, small(file("workspace", "")), "workdir"},
		"relative workdir":       {Spec{Workdir: "srv"}, small(), "workdir"},
		"unclean workdir":        {Spec{Workdir: "/srv/../etc"}, small(), "workdir"},
		"env":                    {Spec{Env: map[string]string{"A=B": ""}}, small(), "env"},
		"large env":              {Spec{Env: map[string]string{"A": strings.Repeat("x", maxEnv)}}, small(), "env"},
		"language":               {Spec{Language: "a\nb"}, small(), "language"},
		"version":                {Spec{LanguageVersion: strings.Repeat("1", 65)}, small(), "language_version"},
		"own programs":           {Spec{}, small(file("bin/a", native(machines["arm64"])), file("bin/b", native(machines["amd64"]))), ""},
		"short program":          {Spec{}, small(file("bin/a", "\x7fELF")), ""},
		"other program in /opt":  {Spec{}, small(file("opt/a", native(8))), ""},
	} {
		t.Run(name, func(t *testing.T) {
			imports := newImports(t)
			c.spec.ID = "x"
			_, err := imports.Import(t.Context(), c.spec, bytes.NewReader(archive(t, c.members...)))
			if c.param == "" && err != nil {
				t.Fatal(err)
			}
			if c.param != "" {
				if f := wantCode(t, err, fault.ParameterInvalid); f.Param != c.param {
					t.Fatal(err)
				}
				entries, _ := os.ReadDir(imports.dir)
				if len(entries) > 0 {
					t.Error(entries)
				}
			}
		})
	}
}

func TestNamesOfImports(t *testing.T) {
	c := newImports(t)
	add(t, c, valid("python"))
	tree := archive(t, small()...)
	for _, id := range []string{"", "../x", ".import-x", "a/b", strings.Repeat("a", 65)} {
		_, err := c.Import(t.Context(), Spec{ID: id}, bytes.NewReader(tree))
		if f := wantCode(t, err, fault.ParameterInvalid); f.Param != "name" {
			t.Error(err)
		}
	}
	never := iotest.ErrReader(fmt.Errorf("it was read"))
	_, err := c.Import(t.Context(), Spec{ID: "python"}, never)
	wantCode(t, err, fault.ResourceAlreadyExists)
	_, err = c.Import(t.Context(), Spec{ID: "python", Replace: true}, never)
	wantCode(t, err, fault.Forbidden)

	first := bring(t, c, Spec{ID: "mine"}, small()...)
	_, err = c.Import(t.Context(), Spec{ID: "mine"}, bytes.NewReader(archive(t, small(file("more", ""))...)))
	wantCode(t, err, fault.ResourceAlreadyExists)
	_, err = c.Import(t.Context(), Spec{ID: "mine", Env: map[string]string{"A": "b"}}, bytes.NewReader(tree)) // the same file
	wantCode(t, err, fault.ResourceAlreadyExists)
	if now, err := c.Image(t.Context(), "mine"); err != nil || !reflect.DeepEqual(now, first.Image) {
		t.Error(now, err)
	}
	broken := filepath.Join(c.dir, "broken")
	put(t, filepath.Join(broken, "image.json"), "{")
	_, err = c.Import(t.Context(), Spec{ID: "broken", Replace: true}, never)
	wantCode(t, err, fault.Forbidden)
}

// TestADamagedImageIsMended: its own tree brings it back, without being asked to
// replace anything.
func TestADamagedImageIsMended(t *testing.T) {
	c := newImports(t)
	first := bring(t, c, Spec{ID: "mine"}, small()...)
	for name, spoil := range map[string]func() error{
		"gone":  func() error { return os.Remove(first.Path) },
		"short": func() error { return os.Truncate(first.Path, 4096) },
		"bits": func() error {
			text, err := os.ReadFile(first.Path)
			if err == nil {
				text[5000] ^= 1
				err = os.WriteFile(first.Path, text, 0o444)
			}
			return err
		},
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if mended := bring(t, c, Spec{ID: "mine"}, small()...); mended.Digest != first.Digest || !mended.New {
			t.Errorf("%s: %+v", name, mended)
		}
		sum := sha256.Sum256([]byte(must(t, first.Path)))
		if "sha256:"+hex.EncodeToString(sum[:]) != first.Digest {
			t.Errorf("%s: it is not mended", name)
		}
		checkExt4(t, first.Path)
	}
}

// TestOneImportAtATime: a second one is told to come again, at once.
func TestOneImportAtATime(t *testing.T) {
	c := newImports(t)
	tree := archive(t, small()...)
	body, send := io.Pipe()
	first := make(chan error, 1)
	go func() {
		_, err := c.Import(t.Context(), Spec{ID: "first"}, body)
		first <- err
	}()
	if _, err := send.Write(tree[:512]); err != nil { // it reads: it has its turn
		t.Fatal(err)
	}
	_, err := c.Import(t.Context(), Spec{ID: "second"}, bytes.NewReader(tree))
	if f := wantCode(t, err, fault.NodeAtCapacity); f.RetryAfter == 0 {
		t.Error(f)
	}
	if _, err := send.Write(tree[512:]); err != nil {
		t.Fatal(err)
	}
	if err := send.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	bring(t, c, Spec{ID: "second"}, small()...)
}

// TestErrorsOfTheBodyKeepTheirCode: what the caller's connection did is no fault
// of the archive, and leaves nothing either.
func TestErrorsOfTheBodyKeepTheirCode(t *testing.T) {
	tree := archive(t, small(file("a", strings.Repeat("x", 5000)))...)
	for _, at := range []int{0, 3, 300, 700, 3000, len(tree) - 600} {
		c := newImports(t)
		slow := fault.New(fault.BodyInvalid, "too slow")
		_, err := c.Import(t.Context(), Spec{ID: "a"}, io.MultiReader(bytes.NewReader(tree[:at]), iotest.ErrReader(slow)))
		wantCode(t, err, fault.BodyInvalid)
		leftNothing(t, c)
	}
}

// TestAnyTreeMakesASoundFileSystem: whatever is accepted, e2fsck finds nothing in
// it, and each file reads as it was sent.
func TestAnyTreeMakesASoundFileSystem(t *testing.T) {
	name := rapid.SampledFrom([]string{"a", "b", "c", "lost+found", "x y", "\xff", strings.Repeat("n", 255)})
	rapid.Check(t, func(rt *rapid.T) {
		c := newImports(t)
		members, contents := small(), map[string]string{}
		taken := map[string]bool{}
		for range rapid.IntRange(0, 30).Draw(rt, "members") {
			parts := rapid.SliceOfN(name, 1, 4).Draw(rt, "path")
			path := strings.Join(parts, "/")
			if taken[path] || path == foundDir {
				continue
			}
			taken[path] = true
			switch rapid.IntRange(0, 4).Draw(rt, "kind") {
			case 0:
				members = append(members, dir(path))
			case 1:
				members = append(members, symlink(path, rapid.StringMatching(`[a-z/.]{1,200}`).Draw(rt, "target")))
			case 2:
				if len(contents) > 0 {
					target := slices.Sorted(maps.Keys(contents))[0]
					members = append(members, hardLink(path, target))
				}
			default:
				size := rapid.SampledFrom([]int{0, 1, 60, 4095, 4096, 4097, 20_000}).Draw(rt, "size")
				contents[path] = strings.Repeat("z", size)
				members = append(members, file(path, contents[path]))
			}
		}
		got, err := c.Import(t.Context(), Spec{ID: "any"}, bytes.NewReader(archive(t, members...)))
		if err != nil {
			if !fault.Is(err, fault.ImageInvalid) { // beneath a file, say
				rt.Fatal(err)
			}
			return
		}
		checkExt4(t, got.Path)
		for path, content := range contents {
			if strings.Contains(path, " ") || strings.Contains(path, "\xff") {
				continue // debugfs's own language has no words for these
			}
			if text := debugfs(t, got.Path, "cat "+path); text != content {
				rt.Fatalf("%q has %d bytes, want %d", path, len(text), len(content))
			}
		}
	})
}

// FuzzChecker: whatever the bytes, the checker ends within its bounds, refuses
// with a code and plain letters, or makes a file system that is sound.
func FuzzChecker(f *testing.F) {
	f.Add(archive(f, small()...))
	f.Add(archive(f, small(file("a/b", "x"), hardLink("c", "a/b"), symlink("d", "/"), file("../x", ""))...))
	f.Add(archive(f, file(long, "").with(attribute("SCHILY.xattr.user.x", "y"))))
	f.Add(append(sparseTebibyte(), make([]byte, 1024)...))
	f.Add([]byte("\x1f\x8b\x08\x00"))
	f.Fuzz(func(t *testing.T, tree []byte) {
		c := newImports(t)
		got, err := c.Import(t.Context(), Spec{ID: "any"}, bytes.NewReader(tree))
		if err == nil {
			checkExt4(t, got.Path)
			return
		}
		refused := fault.From(err)
		if refused.Code == fault.InternalError || strings.ContainsFunc(refused.Message, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Fatalf("%v", err)
		}
		leftNothing(t, c)
	})
}
