package microvm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestRangesOnTheWire(t *testing.T) {
	for want, r := range map[string]FileRange{
		"":                            {},
		"bytes=5-":                    {Offset: 5},
		"bytes=5-14":                  {Offset: 5, Length: 10},
		"bytes=0-0":                   {Length: 1},
		"bytes=-7":                    {Offset: -7},
		"bytes=9-9223372036854775807": {Offset: 9, Length: 1<<63 - 1},
		`bytes=5- if "tag"`:           {Offset: 5, ETag: `"tag"`},
	} {
		got := r.header()["Range"]
		if tag := r.header()["If-Range"]; tag != "" {
			got += " if " + tag
		}
		if got != want {
			t.Errorf("%+v is %q, want %q", r, got, want)
		}
	}
	c := serve(t, handlers{reply(200, nil)})
	for _, wrong := range []FileRange{{Length: -1}, {Offset: -5, Length: 2}} {
		if _, err := c.Files.DownloadRange(t.Context(), sandboxID, "a", wrong, io.Discard); err == nil {
			t.Errorf("%+v was sent", wrong)
		}
	}
}

// serveFile serves content as the node does.
func serveFile(content, tag string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", tag)
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(content))
	}
}

func TestPartsOfFiles(t *testing.T) {
	for name, test := range map[string]struct {
		r       FileRange
		content string
		want    string
		part    FilePart
	}{
		"all":       {FileRange{}, "0123456789", "0123456789", FilePart{0, 10, 10, `"t"`}},
		"the rest":  {FileRange{Offset: 4}, "0123456789", "456789", FilePart{4, 6, 10, `"t"`}},
		"some":      {FileRange{Offset: 4, Length: 2}, "0123456789", "45", FilePart{4, 2, 10, `"t"`}},
		"the last":  {FileRange{Offset: -2}, "0123456789", "89", FilePart{8, 2, 10, `"t"`}},
		"unchanged": {FileRange{Offset: 4, ETag: `"t"`}, "0123456789", "456789", FilePart{4, 6, 10, `"t"`}},
		"nothing":   {FileRange{}, "", "", FilePart{0, 0, 0, `"t"`}},
	} {
		var to bytes.Buffer
		r := serve(t, handlers{serveFile(test.content, `"t"`)})
		part, err := r.Files.DownloadRange(t.Context(), sandboxID, "a", test.r, &to)
		if err != nil || to.String() != test.want || *part != test.part {
			t.Errorf("%s: %q %+v %v", name, to.String(), part, err)
		}
	}
}

// TestDownloadGoesOn: what broke off is taken up where it did, unless the file is
// another by then.
func TestDownloadGoesOn(t *testing.T) {
	half := cut("HTTP/1.1 200 OK\r\nETag: \"t\"\r\nContent-Length: 10\r\n\r\n0123")
	var to bytes.Buffer
	r := serve(t, handlers{half, serveFile("0123456789", `"t"`), serveFile("another file", `"u"`)})
	part, err := r.Files.DownloadRange(t.Context(), sandboxID, "a", FileRange{}, &to)
	var lost *ConnectionError
	if !errors.As(err, &lost) || part == nil || *part != (FilePart{0, 4, 10, `"t"`}) {
		t.Fatalf("%+v %v", part, err)
	}
	next := FileRange{Offset: part.Offset + part.Written, ETag: part.ETag}
	if part, err = r.Files.DownloadRange(t.Context(), sandboxID, "a", next, &to); err != nil || to.String() != "0123456789" {
		t.Fatalf("%q %+v %v", to.String(), part, err)
	}
	to.Reset()
	if part, err = r.Files.DownloadRange(t.Context(), sandboxID, "a", next, &to); !errors.Is(err, ErrFileChanged) || to.Len() > 0 {
		t.Fatalf("%q %+v %v", to.String(), part, err)
	}
}

func TestStrangePartsAreNotTaken(t *testing.T) {
	for _, header := range []string{"", "bytes */10", "bytes 5-4/10", "bytes 4-10/10", "bytes -1-4/10", "lines 1-2/3"} {
		var to bytes.Buffer
		r := serve(t, handlers{cut(fmt.Sprintf("HTTP/1.1 206 Partial Content\r\nContent-Range: %s\r\nContent-Length: 2\r\n\r\n45", header))})
		if part, err := r.Files.DownloadRange(t.Context(), sandboxID, "a", FileRange{Offset: 4, Length: 2}, &to); err == nil || to.Len() > 0 {
			t.Errorf("%q: %q %+v", header, to.String(), part)
		}
	}
	var to bytes.Buffer
	r := serve(t, handlers{reply(200, "whole")})
	if _, err := r.Files.DownloadRange(t.Context(), sandboxID, "a", FileRange{Offset: 4}, &to); err == nil || to.Len() > 0 {
		t.Errorf("a whole file for a part: %q", to.String())
	}
}
