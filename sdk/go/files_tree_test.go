package microvm

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// asked is a request as a server saw it.
type asked struct {
	line, body string
	header     http.Header
}

// answering keeps the request and replies.
func answering(to *asked, status int, body any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		*to = asked{r.Method + " " + strings.TrimPrefix(r.RequestURI, "/v1/sandboxes/"+sandboxID), string(text), r.Header}
		reply(status, body)(w, r)
	}
}

func TestFileCallsOnTheWire(t *testing.T) {
	one := File{Object: FileObjectFile, Path: "/workspace/a", Mode: "0644", Type: FileTypeFile}
	kept := WriteArchiveParamsOwnersKeep
	gz := ArchiveFormatTarGz
	for name, test := range map[string]struct {
		do           func(*Client) (any, error)
		reply        any
		status       int
		line, body   string
		octetsInBody bool
	}{
		"batch": {func(c *Client) (any, error) {
			return c.Files.WriteBatch(t.Context(), sandboxID, []FileWrite{{Path: "a", Content: []byte("hi")}, {Path: "b"}})
		}, FileBatchWritten{Object: FileBatchWrittenObjectFileBatch, Data: []File{one, one}}, 201, "POST /files/batch", `{"files":[{"content":"aGk=","path":"a"},{"content":"","path":"b"}]}`, false},
		"append": {func(c *Client) (any, error) {
			return c.Files.Append(t.Context(), sandboxID, "a", 7, strings.NewReader("more"), WithMode(0o600))
		}, one, 201, "PUT /files/content?append_at=7&mode=0600&path=a", "more", true},
		"stat": {func(c *Client) (any, error) {
			return c.Files.Stat(t.Context(), sandboxID, "a\xff&b")
		}, one, 200, "GET /files/stat?path=a%FF%26b", "", false},
		"list": {func(c *Client) (any, error) {
			return c.Files.List(t.Context(), sandboxID, ListFilesParams{Path: new("src"), Depth: new(3), Limit: new(5), After: new("/workspace/src/a")})
		}, FileList{Object: ListObjectList, Data: []File{one}}, 200, "GET /files/list?after=%2Fworkspace%2Fsrc%2Fa&depth=3&limit=5&path=src", "", false},
		"make directory": {func(c *Client) (any, error) {
			return c.Files.MakeDir(t.Context(), sandboxID, "d")
		}, one, 201, "POST /dirs", `{"mode":"0755","path":"d"}`, false},
		"make directory with a mode": {func(c *Client) (any, error) {
			return c.Files.MakeDir(t.Context(), sandboxID, "d", WithMode(0o700))
		}, one, 201, "POST /dirs", `{"mode":"0700","path":"d"}`, false},
		"move": {func(c *Client) (any, error) {
			return c.Files.Move(t.Context(), sandboxID, FileMove{From: "a", To: "b", Replace: new(true)})
		}, one, 200, "POST /files/move", `{"from":"a","replace":true,"to":"b"}`, false},
		"remove": {func(c *Client) (any, error) {
			return c.Files.Remove(t.Context(), sandboxID, "a", false)
		}, FileRemoved{Object: FileRemovedObjectFileRemoved, Entries: 1}, 200, "DELETE /files?path=a", "", false},
		"remove all": {func(c *Client) (any, error) {
			return c.Files.Remove(t.Context(), sandboxID, "a", true)
		}, FileRemoved{Object: FileRemovedObjectFileRemoved, Entries: 9}, 200, "DELETE /files?path=a&recursive=true", "", false},
		"unpack": {func(c *Client) (any, error) {
			return c.Files.UploadArchive(t.Context(), sandboxID, WriteArchiveParams{Path: "d"}, strings.NewReader("a tar"))
		}, ArchiveUnpacked{Object: ArchiveUnpackedObjectArchiveUnpacked}, 200, "PUT /archive?format=tar&path=d", "a tar", true},
		"unpack as it was": {func(c *Client) (any, error) {
			return c.Files.UploadArchive(t.Context(), sandboxID, WriteArchiveParams{Path: "d", Format: &gz, Owners: &kept}, strings.NewReader("a tar"))
		}, ArchiveUnpacked{Object: ArchiveUnpackedObjectArchiveUnpacked}, 200, "PUT /archive?format=tar.gz&owners=keep&path=d", "a tar", true},
	} {
		t.Run(name, func(t *testing.T) {
			var got asked
			r := serve(t, handlers{answering(&got, test.status, test.reply)})
			out, err := test.do(r.Client)
			if err != nil || got.line != test.line {
				t.Fatalf("%s: %+v %v", got.line, out, err)
			}
			if same := got.body == test.body; !same && !sameJSON(got.body, test.body) {
				t.Errorf("sent %s", got.body)
			}
			if (got.header.Get("Content-Type") == "application/octet-stream") != test.octetsInBody {
				t.Errorf("sent as %q", got.header.Get("Content-Type"))
			}
			r = serve(t, handlers{refusal(409, ErrorTypeInvalidRequestError, ErrorCodeFileConflict)})
			if _, err := test.do(r.Client); !HasCode(err, ErrorCodeFileConflict) {
				t.Errorf("a refusal is %v", err)
			}
			r = serve(t, handlers{reply(200, map[string]string{"object": "another"})})
			if _, err := test.do(r.Client); err == nil || !strings.Contains(err.Error(), "not what the API promises") {
				t.Errorf("another object is %v", err)
			}
		})
	}
}

func sameJSON(a, b string) bool {
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return false
	}
	left, _ := json.Marshal(x)
	right, _ := json.Marshal(y)
	return bytes.Equal(left, right)
}

// TestWhatIsNotRepeated: a second removal, move or append would meet what the first
// one did.
func TestWhatIsNotRepeated(t *testing.T) {
	for name, do := range map[string]func(*Client) error{
		"remove": func(c *Client) error { _, err := c.Files.Remove(t.Context(), sandboxID, "a", true); return err },
		"move": func(c *Client) error {
			_, err := c.Files.Move(t.Context(), sandboxID, FileMove{From: "a", To: "b"})
			return err
		},
		"append": func(c *Client) error {
			_, err := c.Files.Append(t.Context(), sandboxID, "a", 1, strings.NewReader("x"))
			return err
		},
	} {
		r := serve(t, handlers{cut("")})
		var lost *ConnectionError
		if err := do(r.Client); !errors.As(err, &lost) || !lost.Sent || len(r.seen()) != 1 {
			t.Errorf("%s: %v after %q", name, err, r.seen())
		}
	}
	made := File{Object: FileObjectFile, Path: "/d", Type: FileTypeDirectory}
	r := serve(t, handlers{cut(""), reply(201, made)})
	if _, err := r.Files.MakeDir(t.Context(), sandboxID, "d"); err != nil || len(r.seen()) != 2 {
		t.Errorf("a directory: %v after %q", err, r.seen())
	}
}

// TestAllFiles goes from page to page by the exact path of the last entry.
func TestAllFiles(t *testing.T) {
	odd := "L2Ev/w==" // "/a/\xff"
	pages := []FileList{
		{Object: ListObjectList, HasMore: true, Data: []File{{Path: "/a/\uFFFD", PathBase64: &odd}}},
		{Object: ListObjectList, HasMore: true, Data: []File{{Path: "/a/\uFFFD"}, {Path: "/a/z"}}},
		{Object: ListObjectList},
	}
	r := serve(t, handlers{reply(200, pages[0]), reply(200, pages[1]), reply(200, pages[2])})
	var got []string
	for file, err := range r.Files.All(t.Context(), sandboxID, ListFilesParams{Path: new("/a"), Depth: new(2)}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, file.ExactPath())
	}
	if want := []string{"/a/\xff", "/a/\uFFFD", "/a/z"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	for i, want := range []string{"limit=100", "after=%2Fa%2F%FF&depth=2&limit=100", "after=%2Fa%2Fz&"} {
		if !strings.Contains(r.seen()[i], want) {
			t.Errorf("page %d is %s", i, r.seen()[i])
		}
	}
	r = serve(t, handlers{refusal(404, ErrorTypeInvalidRequestError, ErrorCodeFileNotFound)})
	for _, err := range r.Files.All(t.Context(), sandboxID, ListFilesParams{}) {
		if !HasCode(err, ErrorCodeFileNotFound) {
			t.Error(err)
		}
	}
}

func TestExactNames(t *testing.T) {
	wrong := "*"
	for _, test := range []struct {
		file         File
		path, target string
	}{
		{File{Path: "/a"}, "/a", ""},
		{File{Path: "/\uFFFD", PathBase64: new("L/8="), Target: new("\uFFFD"), TargetBase64: new("/w==")}, "/\xff", "\xff"},
		{File{Path: "/\uFFFD", PathBase64: &wrong, Target: new("b")}, "/\uFFFD", "b"},
	} {
		if test.file.ExactPath() != test.path || test.file.ExactTarget() != test.target {
			t.Errorf("%+v: %q %q", test.file, test.file.ExactPath(), test.file.ExactTarget())
		}
	}
}

// TestNoPathIsChangedOnItsWay: JSON would put U+FFFD in the place of some bytes.
func TestNoPathIsChangedOnItsWay(t *testing.T) {
	r := serve(t, handlers{reply(200, nil)})
	for name, do := range map[string]func() error{
		"batch": func() error {
			_, err := r.Files.WriteBatch(t.Context(), sandboxID, []FileWrite{{Path: "a"}, {Path: "\xff"}})
			return err
		},
		"directory": func() error { _, err := r.Files.MakeDir(t.Context(), sandboxID, "\xff"); return err },
		"move": func() error {
			_, err := r.Files.Move(t.Context(), sandboxID, FileMove{From: "a", To: "\xff"})
			return err
		},
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), "not UTF-8") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(r.seen()) > 0 {
		t.Errorf("sent %q", r.seen())
	}
}

func TestEmptyPathsAreNotSent(t *testing.T) {
	r := serve(t, handlers{reply(200, nil)})
	for name, do := range map[string]func() error{
		"stat":   func() error { _, err := r.Files.Stat(t.Context(), sandboxID, ""); return err },
		"remove": func() error { _, err := r.Files.Remove(t.Context(), sandboxID, "", true); return err },
		"move":   func() error { _, err := r.Files.Move(t.Context(), sandboxID, FileMove{To: "b"}); return err },
		"range": func() error {
			_, err := r.Files.DownloadRange(t.Context(), sandboxID, "", FileRange{}, io.Discard)
			return err
		},
		"pack": func() error {
			_, err := r.Files.DownloadArchive(t.Context(), sandboxID, ReadArchiveParams{}, io.Discard)
			return err
		},
		"watch": func() (failed error) {
			for _, err := range r.Files.Watch(t.Context(), sandboxID, WatchFilesParams{}) {
				failed = err
			}
			return failed
		},
	} {
		if err := do(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if len(r.seen()) > 0 {
		t.Errorf("sent %q", r.seen())
	}
}
