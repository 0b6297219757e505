package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/microvmd/microvm/internal/fault"
)

// long has a path that a ustar header cannot hold.
var long = strings.Repeat("d/", 2100) + "f"

// TestHostileMembersAreRefusedByName: each is refused, its name and what is wrong
// with it are said, and nothing is left.
func TestHostileMembersAreRefusedByName(t *testing.T) {
	usrmerge := []member{dir("usr"), dir("usr/bin"), symlink("bin", "usr/bin")}
	device := func(name string, kind byte, major, minor int64) member {
		return member{Header: tar.Header{Name: name, Typeflag: kind, Mode: 0o666, Devmajor: major, Devminor: minor}}
	}
	for name, c := range map[string]struct {
		members []member
		want    string // of the message
	}{
		"absolute":                {[]member{file("/etc/shadow", "")}, `member "/etc/shadow": its name is absolute`},
		"absolute root":           {[]member{dir("/")}, `member "/": its name is absolute`},
		"dots":                    {[]member{file("../x", "")}, `member "../x": its name has ".."`},
		"dots within":             {[]member{file("etc/../../x", "")}, `its name has ".."`},
		"dots after ./":           {[]member{file("./../x", "")}, `member "./../x": its name has ".."`},
		"only dots":               {[]member{dir("..")}, `its name has ".."`},
		"slash after ./":          {[]member{file(".//etc/x", "")}, "its name is absolute"},
		"empty part":              {[]member{file("etc//x", "")}, "not clean"},
		"dot part":                {[]member{file("etc/./x", "")}, "not clean"},
		"empty name":              {[]member{file("", "")}, "its name is empty"},
		"long part":               {[]member{file("etc/"+strings.Repeat("n", 256), "")}, "a part of 256 bytes"},
		"long name":               {[]member{file(long, "")}, "4201 bytes, the most is 4095"},
		"strange letters":         {[]member{file("/\x1b[31m\xff\u202e", "")}, `member "/\x1b[31m\xff\u202e"`},
		"beneath a link":          {append(usrmerge, file("bin/sh", "")), `member "bin/sh": it lies beneath "bin", which is a symbolic link`},
		"deep beneath a link":     {append(usrmerge, file("bin/a/b/c", "")), `it lies beneath "bin"`},
		"beneath a link outside":  {[]member{symlink("out", "/etc"), file("out/passwd", "x")}, `it lies beneath "out"`},
		"beneath a file":          {[]member{file("etc/passwd/x", "")}, `it lies beneath "etc/passwd", which is a file`},
		"beneath a hard link":     {[]member{file("a", ""), hardLink("b", "a"), file("b/c", "")}, `it lies beneath "b", which is a file`},
		"twice":                   {[]member{file("a", "1"), file("a", "2")}, `member "a": it is there twice, first as a file`},
		"twice in other words":    {[]member{file("a", "1"), file("./a", "2")}, `member "./a": it is there twice`},
		"directory twice":         {[]member{dir("a"), dir("a/")}, "it is there twice, first as a directory"},
		"root twice":              {[]member{dir(".")}, `member ".": it is there twice`},
		"link over a directory":   {[]member{dir("a"), symlink("a", "/")}, "it is there twice"},
		"directory over a link":   {[]member{symlink("a", "/"), dir("a")}, "first as a symbolic link"},
		"file over a made parent": {[]member{file("a/b", ""), file("a", "")}, "first as a directory"},
		"root is a file":          {[]member{file("./.", "")}, "the root of the tree is a file"},
		"hard link to nothing":    {[]member{hardLink("a", "b")}, `member "a": it is a hard link to "b", which is not in the archive before it`},
		"hard link forward":       {[]member{hardLink("a", "b"), file("b", "")}, "not in the archive before it"},
		"hard link to itself":     {[]member{hardLink("a", "a")}, "not in the archive before it"},
		"hard link absolute":      {[]member{hardLink("a", "/etc/passwd")}, `member "a": its target is absolute ("/etc/passwd")`},
		"hard link outside":       {[]member{hardLink("a", "../etc/passwd")}, `its target has ".."`},
		"hard link to directory":  {[]member{hardLink("a", "etc")}, "which is a directory"},
		"hard link to root":       {[]member{hardLink("a", ".")}, "which is a directory"},
		"hard link through link":  {[]member{symlink("l", "etc"), hardLink("a", "l/passwd")}, "not in the archive before it"},
		"hard link to nowhere":    {[]member{hardLink("a", "")}, "its target is empty"},
		"hard link to a device":   {[]member{device("dev/null", tar.TypeChar, 1, 3), hardLink("a", "dev/null")}, "which is a character device"},
		"hard link with content":  {[]member{file("a", ""), hardLink("b", "a").with(func(h *tar.Header) { h.Linkname = "" })}, "its target is empty"},
		"symlink to nowhere":      {[]member{symlink("a", "")}, "its target is empty"},
		"symlink to far away":     {[]member{symlink("a", strings.Repeat("x", 4096))}, "its target has 4096 bytes"},
		"character device":        {[]member{device("disk", tar.TypeChar, 1, 3)}, `member "disk": it is a character device, which an image may have beneath /dev only`},
		"block device":            {[]member{device("var/disk", tar.TypeBlock, 8, 0)}, "it is a block device"},
		"device named dev":        {[]member{device("dev", tar.TypeBlock, 8, 0)}, "must be a directory"},
		"whiteout device":         {[]member{device("dev/x", tar.TypeChar, 0, 0)}, "removed file"},
		"device number":           {[]member{device("dev/x", tar.TypeChar, 4096, 0)}, "device numbers are 4096 and 0"},
		"type":                    {[]member{file("a", "").with(func(h *tar.Header) { h.Typeflag = '7' })}, `its type is '7'`},
		"mode":                    {[]member{file("a", "").with(func(h *tar.Header) { h.Mode = 0o1007777 &^ typeBits })}, "its mode is 01007777"},
		"uid":                     {[]member{file("a", "").with(func(h *tar.Header) { h.Uid = 1<<32 - 1 })}, "its uid is 4294967295"},
		"gid":                     {[]member{file("a", "").with(func(h *tar.Header) { h.Gid = 1 << 40 })}, "its gid is 1099511627776"},
		"old":                     {[]member{file("a", "").with(func(h *tar.Header) { h.ModTime = time.Unix(-1, 0) })}, "its time is 1969-12-31"},
		"young":                   {[]member{file("a", "").with(func(h *tar.Header) { h.ModTime = time.Unix(lastTime+1, 0) })}, "its time is 2446"},
		"trusted attribute":       {[]member{dir("a").with(attribute("SCHILY.xattr.trusted.overlay.opaque", "y"))}, `its attribute is "trusted.overlay.opaque"`},
		"overlay attribute":       {[]member{dir("a").with(attribute("SCHILY.xattr.user.overlay.redirect", "/etc"))}, `its attribute is "user.overlay.redirect"`},
		"label":                   {[]member{file("a", "").with(attribute("SCHILY.xattr.security.selinux", "x"))}, "--no-selinux"},
		"ACL as attribute":        {[]member{file("a", "").with(attribute("SCHILY.xattr.system.posix_acl_access", "x"))}, "posix_acl_access"},
		"ACL as record":           {[]member{file("a", "").with(attribute("SCHILY.acl.access", "user::rw-"))}, `its extended header has "SCHILY.acl.access"`},
		"attribute in base64":     {[]member{file("a", "").with(attribute("LIBARCHIVE.xattr.user.x", "eA"))}, `its extended header has "LIBARCHIVE.xattr.user.x"`},
		"attribute of a link":     {[]member{symlink("a", "b").with(attribute("SCHILY.xattr.user.x", "y"))}, "a symbolic link with the attribute"},
		"attribute without name":  {[]member{file("a", "").with(attribute("SCHILY.xattr.user.", "y"))}, "its attribute has a name"},
		"attribute of letters":    {[]member{file("a", "").with(attribute("SCHILY.xattr.user.\u00e9", "y"))}, "not of plain letters"},
		"large attribute":         {[]member{file("a", "").with(attribute("SCHILY.xattr.user.x", strings.Repeat("y", 4060)))}, "more than an inode holds"},
		"large attributes": {[]member{file("a", "").with(func(h *tar.Header) {
			h.PAXRecords = map[string]string{"SCHILY.xattr.user.x": strings.Repeat("x", 200), "SCHILY.xattr.user.y": strings.Repeat("y", 200)}
		})}, "more than an inode holds"},
		"layer":            {[]member{file("etc/.wh.shadow", "")}, "this is a layer"},
		"opaque layer":     {[]member{file("etc/.wh..wh..opq", "")}, "this is a layer"},
		"archive of OCI":   {[]member{file("oci-layout", "{}")}, "an archive of layers"},
		"/proc is a link":  {[]member{symlink("proc", "/x")}, `member "proc": it is a symbolic link and must be a directory`},
		"/run is a file":   {[]member{file("./run", "")}, "must be a directory"},
		"/lost+found":      {[]member{file("lost+found", "")}, "must be a directory"},
		"other processor":  {[]member{file("bin/sh", "\x7fELF\x02\x01"+strings.Repeat("\x00", 10)+"\x02\x00\x08\x00")}, `member "bin/sh": it is a program of another processor`},
		"other byte order": {[]member{file("usr/bin/sh", "\x7fELF\x02\x02"+strings.Repeat("\x00", 10)+"\x00\x02\x00\x16")}, "another processor"},
		"global header": {
			[]member{{Header: tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "g", PAXRecords: map[string]string{"path": "etc/shadow"}}}},
			`a global header with "path"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			imports := newImports(t)
			tree := archive(t, small(c.members...)...)
			_, err := imports.Import(t.Context(), Spec{ID: "bad"}, bytes.NewReader(tree))
			f := wantCode(t, err, fault.ImageInvalid)
			if !strings.Contains(f.Message, c.want) {
				t.Errorf("message is %q, want %q", f.Message, c.want)
			}
			if strings.ContainsFunc(f.Message, func(r rune) bool { return r < ' ' || r > '~' }) || len(f.Message) > 1200 {
				t.Errorf("message of %d bytes, or with strange letters: %q", len(f.Message), f.Message)
			}
			leftNothing(t, imports)
		})
	}
}

func leftNothing(t *testing.T, c *Catalogue) {
	t.Helper()
	entries, err := os.ReadDir(c.dir)
	if err != nil || len(entries) > 0 {
		t.Errorf("left %v, %v", entries, err)
	}
}

// TestHostileArchivesAreRefused: what is wrong with the stream and no member.
func TestHostileArchivesAreRefused(t *testing.T) {
	good := archive(t, small(file("a", strings.Repeat("x", 1000)))...)
	zip := func(data []byte) []byte {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	spoilt := bytes.Clone(zip(good))
	spoilt[len(spoilt)-6] ^= 1 // of the sum
	header := bytes.Clone(good)
	header[512+100] = 'z' // the mode of ./etc/
	negative := bytes.Clone(good)
	copy(negative[2*512+124:], "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe")
	for name, c := range map[string]struct {
		tree []byte
		want string
	}{
		"nothing":             {nil, "the archive is empty"},
		"one byte":            {[]byte("x"), "cut off"},
		"text":                {bytes.Repeat([]byte("no tar at all\n"), 100), "it is no tar"},
		"no member":           {archive(t), "has no file"},
		"only a root":         {archive(t, dir("./")), "has no file"},
		"zstd":                {[]byte("\x28\xb5\x2f\xfd------"), "compressed with zstd"},
		"xz":                  {[]byte("\xfd7zXZ\x00------"), "compressed with xz"},
		"bzip2":               {[]byte("BZh91AY&SY"), "compressed with bzip2"},
		"gzip of nothing":     {zip(nil), "cut off"},
		"gzip of text":        {zip([]byte(strings.Repeat("text ", 1000))), "it is no tar"},
		"gzip cut":            {zip(good)[:200], "cut off"},
		"gzip without end":    {zip(good)[:len(zip(good))-8], "cut off"},
		"gzip with wrong sum": {spoilt, "damaged"},
		"gzip in gzip":        {zip(zip(bytes.Repeat(good, 100))), "the archive"},
		"cut in a file":       {good[:len(good)-1024-700], `member "a": the archive is cut off`},
		"cut behind a file":   {good[:len(good)-1024], `member "a": the archive is cut off`},
		"half an end":         {good[:len(good)-512], "cut off"},
		"damaged header":      {header, `behind or in member "./"`},
		"negative size":       {negative, `behind or in member "./etc/"`},
		"a second archive":    {append(bytes.Clone(good), good...), "something follows"},
		"endless padding":     {append(bytes.Clone(good), make([]byte, maxPadding+1)...), "something follows"},
	} {
		t.Run(name, func(t *testing.T) {
			imports := newImports(t)
			_, err := imports.Import(t.Context(), Spec{ID: "bad"}, bytes.NewReader(c.tree))
			if f := wantCode(t, err, fault.ImageInvalid); !strings.Contains(f.Message, c.want) {
				t.Errorf("message is %q, want %q", f.Message, c.want)
			}
			leftNothing(t, imports)
		})
	}
	imports := newImports(t)
	for _, tree := range [][]byte{good, zip(good), append(bytes.Clone(good), make([]byte, maxPadding)...), zip(append(bytes.Clone(good), make([]byte, 9216)...))} {
		if _, err := imports.Import(t.Context(), Spec{ID: "good"}, bytes.NewReader(tree)); err != nil {
			t.Error(err)
		}
	}
}

// endless is a body that has no end.
type endless struct {
	repeat []byte
	read   int64
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.repeat[e.read%int64(len(e.repeat)):])
	e.read += int64(n)
	return n, nil
}

// TestBoundsHold: each setting is reached by a tree that is one over it, and a
// stream that has no end is not read for long.
func TestBoundsHold(t *testing.T) {
	imports := newImports(t)
	imports.bounds = Bounds{Bytes: 1000 + int64(len(accounts)), Members: 4} // etc, etc/passwd, and two
	over := func(code fault.Code, want string, members ...member) {
		t.Helper()
		_, err := imports.Import(t.Context(), Spec{ID: "big"}, bytes.NewReader(archive(t, small(members...)...)))
		if f := wantCode(t, err, code); !strings.Contains(f.Message, want) {
			t.Errorf("message is %q, want %q", f.Message, want)
		}
		leftNothing(t, imports)
	}
	over(fault.PayloadTooLarge, "(image-mib)", file("a", strings.Repeat("x", 1001)))
	over(fault.PayloadTooLarge, "(image-mib)", file("a", strings.Repeat("x", 500)), file("b", strings.Repeat("x", 501)))
	over(fault.PayloadTooLarge, "more than 4 members, which is this node's bound (image-members)", file("a", ""), file("b", ""), file("c", ""))
	over(fault.PayloadTooLarge, "(image-members)", file("made/also/counts", ""))
	over(fault.PayloadTooLarge, "(image-members)", file("a", ""), hardLink("b", "a"), hardLink("c", "a"))
	bring(t, imports, Spec{ID: "fits"}, small(file("a", strings.Repeat("x", 500)), file("b", strings.Repeat("x", 500)))...)

	// A sparse file of a tebibyte in a few hundred bytes, a name of zeros, a bomb.
	sparse := archive(t, small()...)
	sparse = append(sparse[:len(sparse)-1024], sparseTebibyte()...)
	_, err := imports.Import(t.Context(), Spec{ID: "sparse"}, bytes.NewReader(append(sparse, make([]byte, 1024)...)))
	if f := wantCode(t, err, fault.ImageInvalid); !strings.Contains(f.Message, `member "sparse": its size is 1099511627776`) {
		t.Error(f.Message)
	}
	comment := archive(t, member{Header: tar.Header{Name: "g", Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": strings.Repeat("x", 4096)}}})
	forever := &endless{repeat: comment[:len(comment)-1024]}
	_, err = imports.Import(t.Context(), Spec{ID: "forever"}, forever)
	wantCode(t, err, fault.PayloadTooLarge)
	if most := imports.bounds.stream() + 128<<10; forever.read > most {
		t.Errorf("read %d bytes, the most is %d", forever.read, most)
	}
}

// sparseTebibyte is a member in GNU's old sparse form: a hole of a tebibyte.
func sparseTebibyte() []byte {
	block := make([]byte, 512)
	copy(block, "sparse")
	copy(block[100:], "0000644\x00")
	copy(block[108:], "0000000\x00")
	copy(block[116:], "0000000\x00")
	copy(block[124:], "00000000000\x00") // what is stored
	copy(block[136:], "00000000000\x00")
	block[156] = 'S'
	copy(block[257:], "ustar  \x00")
	const tebibyte = "\x80\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00" // in base 256
	copy(block[386:], tebibyte)                                         // the only piece begins at the end
	copy(block[398:], "00000000000\x00")                                // and is empty
	copy(block[483:], tebibyte)                                         // the size of the whole
	sum := 0
	for i, c := range block {
		if i >= 148 && i < 156 {
			c = ' '
		}
		sum += int(c)
	}
	copy(block[148:], fmt.Sprintf("%06o\x00 ", sum))
	return block
}
