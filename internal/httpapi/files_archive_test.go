package httpapi

import (
	"errors"
	"io"
	"net/http"
	"testing"
)

func TestArchivesComeInTheFormThatIsWanted(t *testing.T) {
	s := start(t)
	for name, test := range map[string]struct {
		query  string
		accept []string
		gzip   bool
	}{
		"nothing said":         {"", nil, false},
		"anything":             {"", []string{"*/*"}, false},
		"tar by the query":     {"&format=tar", []string{"application/gzip"}, false},
		"gzip by the query":    {"&format=tar.gz", []string{"application/x-tar"}, true},
		"gzip by the header":   {"", []string{"application/gzip"}, true},
		"gzip before anything": {"", []string{"Application/GZIP;q=0.9, */*;q=0.1"}, true},
		"gzip in two lines":    {"", []string{"application/json", "application/gzip"}, true},
		"either":               {"", []string{"application/gzip, application/x-tar"}, false},
		"no gzip":              {"", []string{"application/gzip;q=0"}, false},
		"no header at all":     {"", []string{";;;,"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got := s.do(t, "GET", archivePath+"?path=src&after=a%2Fb"+test.query, "", func(r *http.Request) { r.Header["Accept"] = test.accept })
			want := tarType
			if test.gzip {
				want = gzipType
			}
			f := &s.world.files
			if got.StatusCode != 200 || got.Header.Get("Content-Type") != want || f.gzip != test.gzip || f.path != "src" || f.after != "a/b" || string(got.body) != "bytes\x00" {
				t.Errorf("%d %s, asked for %+v", got.StatusCode, got.Header.Get("Content-Type"), f)
			}
		})
	}
}

// TestBrokenArchiveIsSeen: it has no length, so its connection must not end as
// that of a whole one does.
func TestBrokenArchiveIsSeen(t *testing.T) {
	for name, body := range map[string]io.Reader{
		"fails":       io.MultiReader(&zeros{left: 1 << 20}, errReader{errBroken}),
		"fails early": errReader{errBroken},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			s.world.files.body = io.NopCloser(body)
			if err := s.cut(t, "/archive?path=a", ""); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("the caller takes half an archive for a whole one: %v", err)
			}
		})
	}
}

func TestArchivesAreUnpackedAsTheyAreSent(t *testing.T) {
	s := start(t)
	f := &s.world.files
	for name, test := range map[string]struct {
		query, kind  string
		gzip, owners bool
	}{
		"nothing said":      {"", "", false, false},
		"bytes":             {"", octets, false, false},
		"a tar":             {"", tarType, false, false},
		"a compressed one":  {"", gzipType, true, false},
		"by the query":      {"&format=tar.gz", octets, true, false},
		"by both":           {"&format=tar.gz", gzipType, true, false},
		"plain by both":     {"&format=tar", tarType, false, false},
		"the user's":        {"&owners=user", "", false, false},
		"whose it was":      {"&owners=keep", "", false, true},
		"with a parameter ": {"", gzipType + "; charset=utf-8", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			f.keep = true
			got := s.do(t, "PUT", archivePath+"?path=src"+test.query, "a tar", func(r *http.Request) {
				r.Header.Del("Content-Type")
				if test.kind != "" {
					r.Header.Set("Content-Type", test.kind)
				}
			})
			if got.StatusCode != 200 || f.gzip != test.gzip || f.owners != test.owners || string(f.content) != "a tar" {
				t.Errorf("%d %s, asked for %+v", got.StatusCode, got.body, f)
			}
		})
	}
	for query, kind := range map[string]string{"&format=tar": gzipType, "&format=tar.gz": tarType} {
		got := s.do(t, "PUT", archivePath+"?path=src"+query, "a tar", func(r *http.Request) { r.Header.Set("Content-Type", kind) })
		if detail := got.fault(t); value(detail.Param) != "format" {
			t.Errorf("%s as %s: %+v", query, kind, detail)
		}
	}
}
