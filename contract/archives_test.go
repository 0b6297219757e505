package contract

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// TestArchiveRoundTrip: what is packed, in either form, and unpacked elsewhere is
// the same tree.
func TestArchiveRoundTrip(t *testing.T) {
	f := startFiles(t)
	ctx := t.Context()
	f.write(t, "src/main.py", "print('hello')\n")
	f.write(t, "src/lib/\xff", strings.Repeat("x", 200_000))
	if _, err := f.MakeDir(ctx, f.sandbox, "src/empty", microvm.WithMode(0o700)); err != nil {
		t.Fatal(err)
	}
	exe, err := f.d.remote().Run(ctx, f.sandbox, "sh", "-c", "ln -s main.py src/latest && ln -s / src/root && mkfifo src/pipe && chmod 750 src/main.py")
	if err != nil || exe.ExitCode == nil || *exe.ExitCode != 0 {
		t.Fatalf("%+v %v", exe, err)
	}
	for _, format := range []microvm.ArchiveFormat{microvm.ArchiveFormatTar, microvm.ArchiveFormatTarGz} {
		var packed bytes.Buffer
		n, err := f.DownloadArchive(ctx, f.sandbox, microvm.ReadArchiveParams{Path: "src", Format: &format}, &packed)
		if err != nil || n != int64(packed.Len()) {
			t.Fatalf("%s: %d bytes, %v", format, n, err)
		}
		if gzipped := bytes.HasPrefix(packed.Bytes(), []byte{0x1f, 0x8b}); gzipped != (format == microvm.ArchiveFormatTarGz) {
			t.Fatalf("%s is something else", format)
		}
		// A FIFO is packed and not unpacked: the first one takes it out.
		into := "copy." + string(format)
		_, err = f.UploadArchive(ctx, f.sandbox, microvm.WriteArchiveParams{Path: into, Format: &format}, bytes.NewReader(packed.Bytes()))
		var refused *microvm.Error
		if !errors.As(err, &refused) || refused.Code != microvm.ErrorCodeParameterInvalid || !strings.Contains(refused.Message, "pipe") {
			t.Fatalf("%s: a FIFO is unpacked: %v", format, err)
		}
	}
	if _, err := f.Remove(ctx, f.sandbox, "src/pipe", false); err != nil {
		t.Fatal(err)
	}
	for _, format := range []microvm.ArchiveFormat{microvm.ArchiveFormatTar, microvm.ArchiveFormatTarGz} {
		var packed bytes.Buffer
		if _, err := f.DownloadArchive(ctx, f.sandbox, microvm.ReadArchiveParams{Path: "src", Format: &format}, &packed); err != nil {
			t.Fatal(err)
		}
		into := "whole." + string(format)
		unpacked, err := f.UploadArchive(ctx, f.sandbox, microvm.WriteArchiveParams{Path: into, Format: &format}, &packed)
		if err != nil || unpacked.Entries != 7 || unpacked.Bytes != 200_015 {
			t.Fatalf("%s: %+v %v", format, unpacked, err)
		}
		compare(t, f, "src", into)
	}
}

// compare holds two trees of a guest against each other.
func compare(t *testing.T, f filesOf, a, b string) {
	t.Helper()
	look := func(dir string) (all []microvm.File) {
		for file, err := range f.All(t.Context(), f.sandbox, microvm.ListFilesParams{Path: &dir, Depth: ptr(32)}) {
			if err != nil {
				t.Fatal(err)
			}
			if file.Type == microvm.FileTypeFile {
				content, err := f.Read(t.Context(), f.sandbox, file.ExactPath())
				if err != nil {
					t.Fatal(err)
				}
				file.Path = string(content)
			} else {
				file.Size, file.Path = 0, ""
			}
			name := strings.TrimPrefix(file.ExactPath(), "/workspace/"+dir)
			file.PathBase64, file.Path = nil, file.Path+name
			all = append(all, file)
		}
		return all
	}
	same := func(x, y microvm.File) bool {
		return x.Path == y.Path && x.Type == y.Type && x.Size == y.Size && x.Mode == y.Mode && x.Modified.Equal(y.Modified) && x.ExactTarget() == y.ExactTarget()
	}
	if left, right := look(a), look(b); len(left) == 0 || !slices.EqualFunc(left, right, same) {
		t.Errorf("%s is %+v, %s is %+v", a, left, b, right)
	}
}

// TestArchiveGoesOn behind a member.
func TestArchiveGoesOn(t *testing.T) {
	f := startFiles(t)
	for _, name := range []string{"d/a", "d/b/c", "d/e"} {
		f.write(t, name, name)
	}
	for after, want := range map[string][]string{"": {"./", "a", "b/", "b/c", "e"}, "b": {"b/c", "e"}, "/workspace/d/b/c": {"e"}, "zzz": nil} {
		params := microvm.ReadArchiveParams{Path: "d"}
		if after != "" {
			params.After = &after
		}
		var packed bytes.Buffer
		if _, err := f.DownloadArchive(t.Context(), f.sandbox, params, &packed); err != nil {
			t.Fatal(err)
		}
		var names []string
		for members := tar.NewReader(&packed); ; {
			member, err := members.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, strings.TrimPrefix(member.Name, "./"))
		}
		for i, name := range want {
			want[i] = strings.TrimPrefix(name, "./")
		}
		if !slices.Equal(names, want) {
			t.Errorf("behind %q: %q, want %q", after, names, want)
		}
	}
}

// TestNothingLeavesTheDirectory: members that would are refused by name, and what
// is outside stays as it is.
func TestNothingLeavesTheDirectory(t *testing.T) {
	f := startFiles(t)
	ctx := t.Context()
	f.write(t, "outside/file", "as it was")
	link := func(name, to string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	file := func(name string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 4, Mode: 0o644}
	}
	for name, members := range map[string][]*tar.Header{
		"up":         {file("../outside/file")},
		"absolute":   {file("/workspace/outside/file")},
		"through":    {link("l", "../outside"), file("l/file")},
		"device":     {{Typeflag: tar.TypeChar, Name: "dev", Devmajor: 1, Devminor: 3}},
		"hard link":  {{Typeflag: tar.TypeLink, Name: "h", Linkname: "../outside/file"}},
		"terminal":   {file("../\x1b[31m\u202e")},
		"in between": {file("a/../../outside/file")},
	} {
		var packed bytes.Buffer
		w := tar.NewWriter(&packed)
		for _, member := range members {
			if err := w.WriteHeader(member); err != nil {
				t.Fatal(err)
			}
			if member.Size > 0 {
				_, _ = io.WriteString(w, "evil")
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		_, err := f.UploadArchive(ctx, f.sandbox, microvm.WriteArchiveParams{Path: "into/" + strings.ReplaceAll(name, " ", "_")}, &packed)
		var refused *microvm.Error
		if !errors.As(err, &refused) || refused.Code != microvm.ErrorCodeParameterInvalid || strings.ContainsAny(refused.Message, "\x1b\u202e") {
			t.Errorf("%s: %v", name, err)
		}
		f.holds(t, "outside/file", "as it was")
	}
	if names := f.names(t, "outside"); !slices.Equal(names, []string{"outside/file"}) {
		t.Errorf("outside is %q", names)
	}
	_, err := f.UploadArchive(ctx, f.sandbox, microvm.WriteArchiveParams{Path: "into"}, strings.NewReader(strings.Repeat("no tar ", 1000)))
	if !microvm.HasCode(err, microvm.ErrorCodeBodyInvalid) {
		t.Errorf("what is no archive: %v", err)
	}
}
