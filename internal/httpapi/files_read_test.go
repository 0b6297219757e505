package httpapi

import (
	"io"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
)

// closeCounter counts bodies that were not closed.
type closeCounter struct {
	io.Reader
	open *int
}

func (c closeCounter) Close() error { *c.open--; return nil }

// TestRanges: each form, on files of several sizes. The content is its offsets.
func TestRanges(t *testing.T) {
	const ten, none = "0123456789", ""
	for name, test := range map[string]struct {
		content, header, ifRange string
		status                   int
		body, contentRange       string
	}{
		"none":                       {ten, "", "", 200, ten, ""},
		"first":                      {ten, "bytes=0-0", "", 206, "0", "bytes 0-0/10"},
		"middle":                     {ten, "bytes=2-4", "", 206, "234", "bytes 2-4/10"},
		"to the end":                 {ten, "bytes=7-", "", 206, "789", "bytes 7-9/10"},
		"from the start":             {ten, "bytes=0-", "", 206, ten, "bytes 0-9/10"},
		"over the end":               {ten, "bytes=8-99", "", 206, "89", "bytes 8-9/10"},
		"to the largest number":      {ten, "bytes=0-9223372036854775807", "", 206, ten, "bytes 0-9/10"},
		"to more than fits":          {ten, "bytes=9-99999999999999999999", "", 206, "9", "bytes 9-9/10"},
		"suffix":                     {ten, "bytes=-3", "", 206, "789", "bytes 7-9/10"},
		"suffix of all":              {ten, "bytes=-10", "", 206, ten, "bytes 0-9/10"},
		"suffix of more":             {ten, "bytes=-11", "", 206, ten, "bytes 0-9/10"},
		"suffix of more than fits":   {ten, "bytes=-99999999999999999999", "", 206, ten, "bytes 0-9/10"},
		"upper case, blanks":         {ten, "Bytes= 2-4 ", "", 206, "234", "bytes 2-4/10"},
		"leading zeros":              {ten, "bytes=002-004", "", 206, "234", "bytes 2-4/10"},
		"at the end":                 {ten, "bytes=10-", "", 416, "", "bytes */10"},
		"behind the end":             {ten, "bytes=11-12", "", 416, "", "bytes */10"},
		"behind what fits":           {ten, "bytes=99999999999999999999-", "", 416, "", "bytes */10"},
		"suffix of nothing":          {ten, "bytes=-0", "", 416, "", "bytes */10"},
		"several":                    {ten, "bytes=0-1,4-5", "", 200, ten, ""},
		"several, one wrong":         {ten, "bytes=0-1,x", "", 200, ten, ""},
		"another unit":               {ten, "lines=1-2", "", 200, ten, ""},
		"another unit, odd":          {ten, "seconds=now", "", 200, ten, ""},
		"no file content":            {none, "", "", 200, "", ""},
		"first of nothing":           {none, "bytes=0-", "", 416, "", "bytes */0"},
		"last of nothing":            {none, "bytes=-5", "", 200, "", ""},
		"none of nothing":            {none, "bytes=-0", "", 416, "", "bytes */0"},
		"the same file":              {ten, "bytes=2-4", "same", 206, "234", "bytes 2-4/10"},
		"another file":               {ten, "bytes=2-4", `"x"`, 200, ten, ""},
		"a weak tag":                 {ten, "bytes=2-4", "weak", 200, ten, ""},
		"a date":                     {ten, "bytes=2-4", "Mon, 30 Nov 2026 09:15:02 GMT", 200, ten, ""},
		"the same, behind its end":   {ten, "bytes=10-", "same", 416, "", "bytes */10"},
		"another, behind its end":    {ten, "bytes=10-", `"x"`, 200, ten, ""},
		"another, suffix of nothing": {ten, "bytes=-0", `"x"`, 200, ten, ""},
		"a condition without range":  {ten, "", `"x"`, 200, ten, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			s.world.files.content = []byte(test.content)
			s.world.files.entry.Size = int64(len(test.content))
			tag := etag(s.world.files.entry)
			switch test.ifRange {
			case "same":
				test.ifRange = tag
			case "weak":
				test.ifRange = "W/" + tag
			}
			got := s.do(t, "GET", filesPath+"?path=a", "", func(r *http.Request) {
				for header, value := range map[string]string{"Range": test.header, "If-Range": test.ifRange} {
					if value != "" {
						r.Header.Set(header, value)
					}
				}
			})
			if got.StatusCode != test.status || got.Header.Get("Content-Range") != test.contentRange {
				t.Fatalf("status %d, Content-Range %q: %s", got.StatusCode, got.Header.Get("Content-Range"), got.body)
			}
			if test.status == http.StatusRequestedRangeNotSatisfiable {
				if detail := got.fault(t); fault.Code(detail.Code) != fault.RangeInvalid || value(detail.Param) != "Range" {
					t.Errorf("%+v", detail)
				}
				return
			}
			if string(got.body) != test.body || got.Header.Get("Content-Length") != strconv.Itoa(len(test.body)) {
				t.Errorf("%q, Content-Length %s", got.body, got.Header.Get("Content-Length"))
			}
			for header, want := range map[string]string{
				"Accept-Ranges": "bytes", "ETag": tag, "Content-Type": octets, "Last-Modified": "",
			} {
				if got.Header.Get(header) != want {
					t.Errorf("%s %q, want %q", header, got.Header.Get(header), want)
				}
			}
		})
	}
}

// TestRangesThatAreNone are refused before the guest hears of them.
func TestRangesThatAreNone(t *testing.T) {
	s := start(t)
	for _, header := range []string{"bytes", "bytes=", "bytes=-", "bytes=x-", "bytes=1-x", "bytes=5-4", "bytes=--1", "bytes=+1-2", "bytes=1 - 2", "bytes=0x1-", "1-2"} {
		got := s.do(t, "GET", filesPath+"?path=a", "", func(r *http.Request) { r.Header.Set("Range", header) })
		if detail := got.fault(t); fault.Code(detail.Code) != fault.ParameterInvalid || value(detail.Param) != "Range" {
			t.Errorf("%q: %+v", header, detail)
		}
	}
	got := s.do(t, "GET", filesPath+"?path=a", "", func(r *http.Request) { r.Header["Range"] = []string{"bytes=0-1", "bytes=2-3"} })
	if detail := got.fault(t); value(detail.Param) != "Range" {
		t.Errorf("%+v", detail)
	}
	if s.world.files.calls > 0 {
		t.Errorf("the guest was asked %d times", s.world.files.calls)
	}
}

// TestRangeReadsOnlyItsPart: what is not wanted is not sent by the guest, and
// nothing stays open.
func TestRangeReadsOnlyItsPart(t *testing.T) {
	s := start(t)
	f := &s.world.files
	ranged := func(header, condition string) {
		open := 0
		f.parts, f.entry.Size = nil, 1<<40
		f.body = closeCounter{&zeros{left: 100}, &open}
		s.do(t, "GET", filesPath+"?path=a", "", func(r *http.Request) {
			r.Header.Set("Range", header)
			if condition != "" {
				r.Header.Set("If-Range", condition)
			}
		})
		s.world.mu.Lock()
		defer s.world.mu.Unlock()
		if open != -len(f.parts) && f.parts[0].Offset < 1<<40 {
			t.Errorf("%s: of %d bodies %d were closed", header, len(f.parts), -open)
		}
	}
	ranged("bytes=1000-1099", "")
	if want := []guestwire.Range{{Offset: 1000, Length: 100}}; !slices.Equal(f.parts, want) {
		t.Errorf("opened %+v", f.parts)
	}
	ranged("bytes=-100", "")
	if want := []guestwire.Range{{Offset: -100, Length: -1}}; !slices.Equal(f.parts, want) {
		t.Errorf("opened %+v", f.parts)
	}
}

// TestLastModified is a date of HTTP, unless the guest says one that is to come.
func TestLastModified(t *testing.T) {
	s := start(t)
	for ns, want := range map[int64]string{
		time.Date(2024, 2, 29, 23, 59, 59, 999, time.FixedZone("", 3600)).UnixNano(): "Thu, 29 Feb 2024 22:59:59 GMT",
		-1:                                   "Wed, 31 Dec 1969 23:59:59 GMT",
		time.Now().Add(time.Hour).UnixNano(): "",
	} {
		s.world.files.entry.ModifiedNS = ns
		if got := s.do(t, "GET", filesPath+"?path=a", ""); got.Header.Get("Last-Modified") != want {
			t.Errorf("%d is %q, want %q", ns, got.Header.Get("Last-Modified"), want)
		}
	}
}

// TestTagsDiffer: each of what names a content makes another tag.
func TestTagsDiffer(t *testing.T) {
	base := guestwire.Entry{Inode: 1, ModifiedNS: 2, Size: 3}
	seen := map[string]bool{etag(base): true}
	for _, other := range []guestwire.Entry{
		{Inode: 2, ModifiedNS: 2, Size: 3}, {Inode: 1, ModifiedNS: 3, Size: 3}, {Inode: 1, ModifiedNS: 2, Size: 4}, {Inode: 1, ModifiedNS: -2, Size: 3},
	} {
		if seen[etag(other)] {
			t.Errorf("%+v has the tag of another", other)
		}
		seen[etag(other)] = true
	}
}
