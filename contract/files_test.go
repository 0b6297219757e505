package contract

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// filesOf are the files of one running sandbox, by HTTP and by the SDK.
type filesOf struct {
	*microvm.FileService
	d       *daemon
	sandbox string
}

func startFiles(t *testing.T) filesOf {
	t.Helper()
	d := start(t, "--max-body-bytes", "1048576")
	client := d.remote()
	return filesOf{client.Files, d, create(t, client, microvm.SandboxCreate{Image: "python"}).ID}
}

// names lists all that is below a directory, relative to it.
func (f filesOf) names(t *testing.T, dir string) (names []string) {
	t.Helper()
	for file, err := range f.All(t.Context(), f.sandbox, microvm.ListFilesParams{Path: &dir, Depth: ptr(32), Limit: ptr(2)}) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, strings.TrimPrefix(file.ExactPath(), "/workspace/"))
	}
	return names
}

func (f filesOf) write(t *testing.T, path, content string) {
	t.Helper()
	if _, err := f.Write(t.Context(), f.sandbox, path, []byte(content)); err != nil {
		t.Fatal(err)
	}
}

func (f filesOf) holds(t *testing.T, path, want string) {
	t.Helper()
	if got, err := f.Read(t.Context(), f.sandbox, path); err != nil || string(got) != want {
		t.Errorf("%s holds %.100q, want %.100q (%v)", path, got, want, err)
	}
}

// TestFilesWalk does everything that can be done with files once, in one guest.
func TestFilesWalk(t *testing.T) {
	f := startFiles(t)
	ctx := t.Context()
	f.write(t, "src/main.py", "print('hello')\n")
	made, err := f.MakeDir(ctx, f.sandbox, "src/lib/deep", microvm.WithMode(0o700))
	if err != nil || made.Type != microvm.FileTypeDirectory || made.Mode != "0700" || made.Path != "/workspace/src/lib/deep" {
		t.Fatalf("%+v %v", made, err)
	}
	if again, err := f.MakeDir(ctx, f.sandbox, "src/lib/deep"); err != nil || again.Mode != "0700" {
		t.Errorf("once more: %+v %v", again, err)
	}
	if _, err := f.MakeDir(ctx, f.sandbox, "src/main.py"); !microvm.HasCode(err, microvm.ErrorCodeResourceAlreadyExists) {
		t.Errorf("where a file is: %v", err)
	}

	if got, err := f.Append(ctx, f.sandbox, "log", 0, strings.NewReader("one\n")); err != nil || got.Size != 4 {
		t.Fatalf("%+v %v", got, err)
	}
	if got, err := f.Append(ctx, f.sandbox, "log", 4, strings.NewReader("two\n")); err != nil || got.Size != 8 {
		t.Fatalf("%+v %v", got, err)
	}
	if _, err := f.Append(ctx, f.sandbox, "log", 4, strings.NewReader("two\n")); !microvm.HasCode(err, microvm.ErrorCodeFileConflict) {
		t.Errorf("the same once more: %v", err)
	}
	f.holds(t, "log", "one\ntwo\n")

	if _, err := f.Move(ctx, f.sandbox, microvm.FileMove{From: "log", To: "src/log"}); err != nil {
		t.Fatal(err)
	}
	f.write(t, "log", "another")
	if _, err := f.Move(ctx, f.sandbox, microvm.FileMove{From: "log", To: "src/log"}); !microvm.HasCode(err, microvm.ErrorCodeResourceAlreadyExists) {
		t.Errorf("over another: %v", err)
	}
	moved, err := f.Move(ctx, f.sandbox, microvm.FileMove{From: "log", To: "src/log", Replace: ptr(true)})
	if err != nil || moved.Path != "/workspace/src/log" || moved.Size != 7 {
		t.Errorf("%+v %v", moved, err)
	}
	for move, code := range map[microvm.FileMove]microvm.ErrorCode{
		{From: "none", To: "x"}:        microvm.ErrorCodeFileNotFound,
		{From: "src", To: "src/lib/x"}: microvm.ErrorCodeParameterInvalid,
		{From: "src/log", To: "no/x"}:  microvm.ErrorCodeFileNotFound,
	} {
		if _, err := f.Move(ctx, f.sandbox, move); !microvm.HasCode(err, code) {
			t.Errorf("%+v: %v", move, err)
		}
	}

	if want := []string{"src", "src/lib", "src/lib/deep", "src/log", "src/main.py"}; !slices.Equal(f.names(t, "."), want) || !slices.Equal(f.names(t, "/workspace"), want) {
		t.Errorf("the directory has %q and %q", f.names(t, "."), f.names(t, "/workspace"))
	}
	if _, err := f.List(ctx, f.sandbox, microvm.ListFilesParams{Path: ptr("src/log")}); !microvm.HasCode(err, microvm.ErrorCodeParameterInvalid) {
		t.Errorf("a list of a file: %v", err)
	}

	if _, err := f.Remove(ctx, f.sandbox, "src", false); !microvm.HasCode(err, microvm.ErrorCodeFileConflict) {
		t.Errorf("a directory with entries: %v", err)
	}
	if _, err := f.Remove(ctx, f.sandbox, ".", true); !microvm.HasCode(err, microvm.ErrorCodeParameterInvalid) {
		t.Errorf("the working directory: %v", err)
	}
	if removed, err := f.Remove(ctx, f.sandbox, "src", true); err != nil || removed.Entries != 5 {
		t.Errorf("%+v %v", removed, err)
	}
	if _, err := f.Stat(ctx, f.sandbox, "src"); !microvm.HasCode(err, microvm.ErrorCodeFileNotFound) {
		t.Errorf("what was removed: %v", err)
	}
}

// TestPartsOfAFile: a download goes on where it broke off, while the file is the
// same.
func TestPartsOfAFile(t *testing.T) {
	f := startFiles(t)
	ctx := t.Context()
	content := strings.Repeat("0123456789", 100_000)
	f.write(t, "data", content)
	var got bytes.Buffer
	part, err := f.DownloadRange(ctx, f.sandbox, "data", microvm.FileRange{Length: 400_001}, &got)
	if err != nil || part.Size != 1_000_000 || part.Written != 400_001 || part.ETag == "" {
		t.Fatalf("%+v %v", part, err)
	}
	rest := microvm.FileRange{Offset: part.Written, ETag: part.ETag}
	if part, err = f.DownloadRange(ctx, f.sandbox, "data", rest, &got); err != nil || got.String() != content {
		t.Fatalf("%+v %v, %d bytes", part, err, got.Len())
	}
	got.Reset()
	if part, err = f.DownloadRange(ctx, f.sandbox, "data", microvm.FileRange{Offset: -3}, &got); err != nil || got.String() != "789" || part.Offset != 999_997 {
		t.Fatalf("%+v %v, %s", part, err, got.String())
	}
	if _, err = f.DownloadRange(ctx, f.sandbox, "data", microvm.FileRange{Offset: 1_000_000}, io.Discard); !microvm.HasCode(err, microvm.ErrorCodeRangeInvalid) {
		t.Errorf("behind the end: %v", err)
	}
	f.write(t, "data", "another")
	got.Reset()
	if part, err = f.DownloadRange(ctx, f.sandbox, "data", rest, &got); !errors.Is(err, microvm.ErrFileChanged) || got.Len() > 0 {
		t.Errorf("another file: %+v %v, %d bytes", part, err, got.Len())
	}
	f.write(t, "empty", "")
	if part, err = f.DownloadRange(ctx, f.sandbox, "empty", microvm.FileRange{}, io.Discard); err != nil || part.Size != 0 {
		t.Errorf("an empty file: %+v %v", part, err)
	}
}

// TestNamesOfBytes: a name that is no text goes in, is listed, and is found again.
func TestNamesOfBytes(t *testing.T) {
	f := startFiles(t)
	const name = "d/a\xff\xfe\n'b"
	f.write(t, name, "here")
	f.holds(t, name, "here")
	if names := f.names(t, "d"); !slices.Equal(names, []string{name}) {
		t.Errorf("listed as %q", names)
	}
	if got, err := f.Stat(t.Context(), f.sandbox, name); err != nil || !strings.HasPrefix(got.Path, "/workspace/d/a\uFFFD") || got.ExactPath() != "/workspace/"+name {
		t.Errorf("%+v %v", got, err)
	}
	if _, err := f.Remove(t.Context(), f.sandbox, name, false); err != nil {
		t.Error(err)
	}
}

// TestFileRoutesOverHTTP is what a caller without an SDK sees of a read.
func TestFileRoutesOverHTTP(t *testing.T) {
	f := startFiles(t)
	f.write(t, "a", "0123456789")
	get := func(headers ...string) reply {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.d.url()+"/v1/sandboxes/"+f.sandbox+"/files?path=a", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+f.d.key)
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		got, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = got.Body.Close() }()
		text, err := io.ReadAll(got.Body)
		if err != nil {
			t.Fatal(err)
		}
		return reply{got, text}
	}
	whole := get()
	tag := whole.Header.Get("ETag")
	if tag == "" || whole.Header.Get("Last-Modified") == "" || whole.Header.Get("Accept-Ranges") != "bytes" {
		t.Errorf("%v", whole.Header)
	}
	if got := get("Range", "bytes=2-4", "If-Range", tag); got.StatusCode != 206 || string(got.body) != "234" || got.Header.Get("Content-Range") != "bytes 2-4/10" {
		t.Errorf("%d %s %v", got.StatusCode, got.body, got.Header)
	}
	if got := get("Range", "bytes=2-4", "If-Range", `"x"`); got.StatusCode != 200 || string(got.body) != "0123456789" {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
	got := get("Range", "bytes=10-")
	checkRefusal(t, got, 416, "invalid_request_error", "range_invalid", "Range")
	if got.Header.Get("Content-Range") != "bytes */10" {
		t.Errorf("Content-Range %q", got.Header.Get("Content-Range"))
	}
	if f.write(t, "a", "9876543210"); get().Header.Get("ETag") == tag {
		t.Error("another content has the same tag")
	}
}
