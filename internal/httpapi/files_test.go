package httpapi

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/httpapi/gen"
)

const (
	filesPath   = "/v1/sandboxes/" + sandboxID + "/files"
	archivePath = "/v1/sandboxes/" + sandboxID + "/archive"
)

func asBytes(r *http.Request) { r.Header.Set("Content-Type", octets) }

func TestFiles(t *testing.T) {
	s := start(t)
	f := &s.world.files
	f.keep = true
	got := s.do(t, "POST", filesPath, `{"path":"main.py","content":"aGVsbG8=","mode":"0755"}`)
	if got.StatusCode != http.StatusCreated || string(f.content) != "hello" || f.mode != 0o755 || f.path != "main.py" || f.at != -1 {
		t.Errorf("write: %d %s, wrote %q %o %s", got.StatusCode, got.body, f.content, f.mode, f.path)
	}
	const wire = `{"gid":1000,"mode":"0644","modified":"2026-11-30T09:15:02.317Z","object":"file","path":"/workspace/main.py","path_base64":null,"size":15,"target":null,"target_base64":null,"type":"file","uid":1000}`
	if strings.TrimSpace(string(got.body)) != wire {
		t.Errorf("%s", got.body)
	}
	got = s.do(t, "PUT", filesPath+"/content?path=a%20b", "\x00\xff", asBytes)
	if got.StatusCode != http.StatusCreated || string(f.content) != "\x00\xff" || f.mode != 0o644 || f.path != "a b" || f.at != -1 {
		t.Errorf("put: %d %s, wrote %q %o %s", got.StatusCode, got.body, f.content, f.mode, f.path)
	}
	got = s.do(t, "PUT", filesPath+"/content?path=empty", "")
	if got.StatusCode != http.StatusCreated || len(f.content) != 0 {
		t.Errorf("put of nothing: %d %s", got.StatusCode, got.body)
	}
	for _, at := range []string{"0", "1048576", "9223372036854775807"} {
		got = s.do(t, "PUT", filesPath+"/content?path=log&mode=600&append_at="+at, "more", asBytes)
		if want := json.Number(at); got.StatusCode != http.StatusCreated || string(f.content) != "more" || f.mode != 0o600 {
			t.Errorf("append: %d %s, wrote %q %o", got.StatusCode, got.body, f.content, f.mode)
		} else if n, _ := want.Int64(); f.at != n {
			t.Errorf("append at %s came as %d", at, f.at)
		}
	}
}

func TestBatch(t *testing.T) {
	s := start(t)
	f := &s.world.files
	f.entries = []guestwire.Entry{f.entry, f.entry}
	got := s.do(t, "POST", filesPath+"/batch", `{"files":[{"path":"a","content":"aGk="},{"path":"b/c","content":"","mode":"0600"}]}`)
	var wire gen.FileBatchWritten
	if err := json.Unmarshal(got.body, &wire); err != nil || got.StatusCode != http.StatusCreated || len(wire.Data) != 2 {
		t.Fatalf("%d %s (%v)", got.StatusCode, got.body, err)
	}
	same := func(a, b guestwire.NewFile) bool {
		return a.Path == b.Path && a.Mode == b.Mode && string(a.Content) == string(b.Content)
	}
	if want := []guestwire.NewFile{{Path: "a", Mode: 0o644, Content: []byte("hi")}, {Path: "b/c", Mode: 0o600}}; !slices.EqualFunc(f.batch, want, same) {
		t.Errorf("asked for %+v", f.batch)
	}
}

func TestTree(t *testing.T) {
	s := start(t)
	f := &s.world.files
	f.entries, f.more = []guestwire.Entry{f.entry}, true
	for query, want := range map[string]guestwire.List{
		"": {Path: ".", Depth: 1, Limit: 100},
		"?path=%2Fsrc&depth=32&limit=1000&after=a%2Fb": {Path: "/src", Depth: 32, Limit: 1000, After: "a/b"},
	} {
		got := s.do(t, "GET", filesPath+"/list"+query, "")
		var list gen.FileList
		if err := json.Unmarshal(got.body, &list); err != nil || !list.HasMore || len(list.Data) != 1 || list.URL != filesPath+"/list" || f.list != want {
			t.Errorf("list%s: asked for %+v, %s (%v)", query, f.list, got.body, err)
		}
	}
	f.entries, f.more = nil, false
	if got := s.do(t, "GET", filesPath+"/list", ""); !strings.Contains(string(got.body), `"data":[],"has_more":false`) {
		t.Errorf("an empty list is %s", got.body)
	}

	f.entry = guestwire.Entry{Path: "/workspace/latest", Type: guestwire.TypeSymlink, Size: 7, Mode: "0777", Target: "main.py"}
	if got := s.do(t, "GET", filesPath+"/stat?path=latest", ""); got.StatusCode != 200 || f.path != "latest" || !strings.Contains(string(got.body), `"target":"main.py","target_base64":null,"type":"symlink"`) {
		t.Errorf("stat: %d %s", got.StatusCode, got.body)
	}

	parent := strings.TrimSuffix(filesPath, "/files")
	if got := s.do(t, "POST", parent+"/dirs", `{"path":"d/e"}`); got.StatusCode != http.StatusCreated || f.path != "d/e" || f.mode != 0o755 {
		t.Errorf("make: %d %s %o", got.StatusCode, f.path, f.mode)
	}
	if s.do(t, "POST", parent+"/dirs", `{"path":"d","mode":"0700"}`); f.mode != 0o700 {
		t.Errorf("made with %o", f.mode)
	}

	for body, want := range map[string]guestwire.Move{
		`{"from":"a","to":"b"}`:                {From: "a", To: "b"},
		`{"from":"a","to":"b","replace":true}`: {From: "a", To: "b", Replace: true},
	} {
		if got := s.do(t, "POST", filesPath+"/move", body); got.StatusCode != http.StatusOK || f.move != want {
			t.Errorf("move: %d, asked for %+v", got.StatusCode, f.move)
		}
	}

	for query, recursive := range map[string]bool{"": false, "&recursive=false": false, "&recursive=true": true} {
		got := s.do(t, "DELETE", filesPath+"?path=d"+query, "")
		if strings.TrimSpace(string(got.body)) != `{"entries":42,"object":"file_removed","path":"d","path_base64":null}` || f.recursive != recursive {
			t.Errorf("remove%s: %d %s", query, got.StatusCode, got.body)
		}
	}
}

// TestNamesThatAreNoText: a name in the guest may be any bytes. It reaches the
// guest as it is, and comes back in two forms.
func TestNamesThatAreNoText(t *testing.T) {
	s := start(t)
	f := &s.world.files
	name := "a\xff\xfeb\n\x7f"
	for method, path := range map[string]string{"GET": "/files/stat?", "PUT": "/files/content?", "DELETE": "/files?"} {
		f.path = ""
		if got := s.do(t, method, strings.TrimSuffix(filesPath, "/files")+path+"path="+url.QueryEscape(name), ""); got.StatusCode/100 != 2 || f.path != name {
			t.Errorf("%s: %d, came as %q", method, got.StatusCode, f.path)
		}
	}
	s.do(t, "GET", filesPath+"/list?path="+url.QueryEscape(name)+"&after="+url.QueryEscape(name), "")
	if f.list.Path != name || f.list.After != name {
		t.Errorf("asked for %+v", f.list)
	}
	f.entry.Path, f.entry.Type, f.entry.Target = "/"+name, guestwire.TypeSymlink, name
	got := s.do(t, "GET", filesPath+"/stat?path=a", "")
	var wire gen.File
	if err := json.Unmarshal(got.body, &wire); err != nil {
		t.Fatal(err)
	}
	if wire.Path != "/a\uFFFDb\n\x7f" || value(wire.PathBase64) != "L2H//mIKfw==" || value(wire.Target) != "a\uFFFDb\n\x7f" || value(wire.TargetBase64) != "Yf/+Ygp/" {
		t.Errorf("%s", got.body)
	}
}
