package artifact

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func sum(text []byte) string {
	s := sha256.Sum256(text)
	return hex.EncodeToString(s[:])
}

// noise is content that does not compress, so that offsets mean something.
func noise(n int) []byte {
	source := rand.NewChaCha8([32]byte{1})
	text := make([]byte, n)
	_, _ = source.Read(text)
	return text
}

func tgz(t *testing.T, members map[string][]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	writer := tar.NewWriter(zipped)
	for name, text := range members {
		header := &tar.Header{Name: name, Mode: 0o755, Size: int64(len(text)), Typeflag: tar.TypeReg}
		if err := errors.Join(writer.WriteHeader(header)); err != nil {
			t.Fatal(err)
		}
		if _, err := writer.Write(text); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(writer.Close(), zipped.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// release is a store whose one artifact comes from a server under the test's
// control, with an archive that holds two programs.
type release struct {
	store     *Store
	archive   []byte
	requests  atomic.Int32
	resumed   atomic.Int32 // answered with 206
	firecrack []byte
}

const releasePath = "v9/fc.tgz"

func newRelease(t *testing.T, handler func(r *release, w http.ResponseWriter, req *http.Request)) *release {
	t.Helper()
	r := &release{firecrack: noise(300_000)}
	jailer := []byte("jailer")
	r.archive = tgz(t, map[string][]byte{"rel/fc": r.firecrack, "rel/jail": jailer, "rel/other": []byte("not wanted"), "../../escape": []byte("x")})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.requests.Add(1)
		handler(r, w, req)
	}))
	t.Cleanup(server.Close)
	store, err := Open(t.TempDir(), Options{ReleaseURL: server.URL, Sources: []Source{Cache, Release}, Arch: "x86_64"})
	if err != nil {
		t.Fatal(err)
	}
	store.limits = limits{attempts: 3, pause: func(int) time.Duration { return 0 }, window: time.Minute, windowMin: 1000}
	store.manifest = &manifest{Artifacts: []entry{{Name: "firecracker", Kind: KindFirecracker, Versions: []version{{
		Version: "9.0.0", Arch: "x86_64", Supported: true,
		Files: []fileSpec{
			{Name: "firecracker", SHA256: sum(r.firecrack), MaxBytes: 1 << 20},
			{Name: "jailer", SHA256: sum(jailer), MaxBytes: 1 << 20},
		},
		Sources: []origin{{
			From: Release, Path: releasePath, SHA256: sum(r.archive), MaxBytes: 1 << 20, TimeoutSeconds: 20, Word: "the test",
			Members: map[string]string{"firecracker": "rel/fc", "jailer": "rel/jail"},
		}},
	}}}}}
	r.store = store
	return r
}

// serve answers as a release page's object store does: ranges and If-Range.
func (r *release) serve(w http.ResponseWriter, req *http.Request) {
	recorder := &statusWriter{ResponseWriter: w, r: r}
	w.Header().Set("ETag", `"one"`)
	http.ServeContent(recorder, req, "fc.tgz", time.Time{}, bytes.NewReader(r.archive))
}

type statusWriter struct {
	http.ResponseWriter
	r *release
}

func (s *statusWriter) WriteHeader(code int) {
	if code == http.StatusPartialContent {
		s.r.resumed.Add(1)
	}
	s.ResponseWriter.WriteHeader(code)
}

// cut sends the headers of the whole, n bytes of it, and drops the connection.
func (r *release) cut(w http.ResponseWriter, n int) {
	w.Header().Set("ETag", `"one"`)
	w.Header().Set("Content-Length", fmt.Sprint(len(r.archive)))
	_, _ = w.Write(r.archive[:n])
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// leftovers lists every file of a cache that is no lock.
func leftovers(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(name string, item fs.DirEntry, err error) error {
		if err == nil && !item.IsDir() && filepath.Base(filepath.Dir(name)) != locksFolder {
			found = append(found, strings.TrimPrefix(name, dir))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestReleaseIsPlacedAndFoundAgain(t *testing.T) {
	r := newRelease(t, func(r *release, w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/"+releasePath {
			t.Errorf("asked for %s", req.URL.Path)
		}
		r.serve(w, req)
	})
	got, err := r.store.Ensure(t.Context(), "firecracker")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(got.Dir, "firecracker"))
	if err != nil || !bytes.Equal(text, r.firecrack) {
		t.Fatalf("placed file differs (%v)", err)
	}
	if got.Source != Release || got.Cached || !got.Supported || got.Word != "the test" {
		t.Errorf("got %+v", got)
	}
	again, err := r.store.Ensure(t.Context(), "firecracker")
	if err != nil || !again.Cached || again.Dir != got.Dir {
		t.Errorf("second time: %+v, %v", again, err)
	}
	if n := r.requests.Load(); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
	if rest := leftovers(t, r.store.dir); len(rest) != 3 {
		t.Errorf("cache holds %v, want two programs and a record", rest)
	}
}

func TestDownloadGoesOnWhereItWasCut(t *testing.T) {
	const at = 100_000
	var ifRange, ranges []string
	r := newRelease(t, func(r *release, w http.ResponseWriter, req *http.Request) {
		if r.requests.Load() == 1 {
			r.cut(w, at)
		}
		ranges, ifRange = append(ranges, req.Header.Get("Range")), append(ifRange, req.Header.Get("If-Range"))
		r.serve(w, req)
	})
	if _, err := r.store.Ensure(t.Context(), "firecracker"); err != nil {
		t.Fatal(err)
	}
	if len(ranges) != 1 || ranges[0] != fmt.Sprintf("bytes=%d-", at) || ifRange[0] != `"one"` || r.resumed.Load() != 1 {
		t.Errorf("ranges %v, if-range %v, resumed %d", ranges, ifRange, r.resumed.Load())
	}
}

func TestDownloadGoesOnInTheNextProcess(t *testing.T) {
	var cutting atomic.Bool
	cutting.Store(true)
	r := newRelease(t, func(r *release, w http.ResponseWriter, req *http.Request) {
		if cutting.Load() && req.Header.Get("Range") == "" {
			r.cut(w, 50_000)
		}
		if cutting.Load() {
			panic(http.ErrAbortHandler)
		}
		r.serve(w, req)
	})
	if _, err := r.store.Ensure(t.Context(), "firecracker"); err == nil {
		t.Fatal("no error from a server that always cuts")
	}
	if n := fileSize(filepath.Join(r.store.dir, partialFolder, sum(r.archive))); n != 50_000 {
		t.Fatalf("partial file has %d bytes, want 50000", n)
	}
	cutting.Store(false)
	next, err := Open(r.store.dir, r.store.options)
	if err != nil {
		t.Fatal(err)
	}
	next.manifest = r.store.manifest
	if _, err := next.Ensure(t.Context(), "firecracker"); err != nil {
		t.Fatal(err)
	}
	if r.resumed.Load() != 1 {
		t.Errorf("resumed %d times, want once", r.resumed.Load())
	}
}

func TestChangedFileIsStartedAnew(t *testing.T) {
	r := newRelease(t, func(r *release, w http.ResponseWriter, req *http.Request) {
		if r.requests.Load() == 1 {
			w.Header().Set("ETag", `"older"`)
			w.Header().Set("Content-Length", fmt.Sprint(len(r.archive)))
			_, _ = w.Write(noise(70_000))
			panic(http.ErrAbortHandler)
		}
		r.serve(w, req) // If-Range does not match: the whole
	})
	if _, err := r.store.Ensure(t.Context(), "firecracker"); err != nil {
		t.Fatal(err)
	}
	if r.resumed.Load() != 0 {
		t.Error("went on with bytes of another file")
	}
}

func TestDamagedPartialFileIsDownloadedOnceMore(t *testing.T) {
	r := newRelease(t, func(r *release, w http.ResponseWriter, req *http.Request) {
		if r.requests.Load() == 1 {
			w.Header().Set("ETag", `"one"`) // the same validator over other bytes
			w.Header().Set("Content-Length", fmt.Sprint(len(r.archive)))
			_, _ = w.Write(bytes.Repeat([]byte{7}, 70_000))
			panic(http.ErrAbortHandler)
		}
		r.serve(w, req)
	})
	if _, err := r.store.Ensure(t.Context(), "firecracker"); err != nil {
		t.Fatal(err)
	}
	if n := r.requests.Load(); n != 3 {
		t.Errorf("%d requests, want 3: cut, resumed, from the first byte", n)
	}
}

func TestWrongChecksumNamesAllAndLeavesNothing(t *testing.T) {
	r := newRelease(t, func(r *release, w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(append([]byte{0}, r.archive...))
	})
	_, err := r.store.Ensure(t.Context(), "firecracker")
	var wrong *ChecksumError
	if !errors.As(err, &wrong) {
		t.Fatalf("error is %v", err)
	}
	found := sum(append([]byte{0}, r.archive...))
	for _, part := range []string{"fc.tgz", sum(r.archive), found, r.store.options.ReleaseURL} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error does not name %s: %v", part, err)
		}
	}
	if rest := leftovers(t, r.store.dir); len(rest) != 0 {
		t.Errorf("left behind: %v", rest)
	}
}

func TestWrongMemberChecksumLeavesNothing(t *testing.T) {
	r := newRelease(t, (*release).serve)
	wanted := strings.Repeat("ab", 32)
	r.store.manifest.Artifacts[0].Versions[0].Files[1].SHA256 = wanted
	_, err := r.store.Ensure(t.Context(), "firecracker")
	var wrong *ChecksumError
	if !errors.As(err, &wrong) || wrong.File != "jailer" || wrong.Wanted != wanted || wrong.Found != sum([]byte("jailer")) {
		t.Fatalf("error is %v", err)
	}
	if rest := leftovers(t, r.store.dir); len(rest) != 0 {
		t.Errorf("left behind: %v", rest)
	}
}

// TestHostileServers: each ends with an error, within the test's time, and with
// nothing on disk beyond the bound.
func TestHostileServers(t *testing.T) {
	cases := []struct {
		name    string
		handler func(r *release, w http.ResponseWriter, req *http.Request)
		want    string
		asked   int32 // requests at most
	}{
		{"declares too much", func(_ *release, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(5<<20))
			_, _ = w.Write([]byte("x"))
		}, "more than the 1048576 allowed", 1},
		{"sends too much", func(_ *release, w http.ResponseWriter, _ *http.Request) {
			for range 40 {
				_, _ = w.Write(make([]byte, 64<<10))
			}
		}, "larger than the 1048576 bytes allowed", 1},
		{"redirects for ever", func(r *release, w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, fmt.Sprintf("/again%d", r.requests.Load()), http.StatusFound)
		}, "redirects", maxRedirects + 1},
		{"has no such release", func(_ *release, w http.ResponseWriter, req *http.Request) {
			http.NotFound(w, req)
		}, "404", 1},
		{"is broken", func(_ *release, w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
		}, "502", 3},
		{"drips", func(r *release, w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(r.archive)))
			ticker := time.NewTicker(5 * time.Millisecond)
			defer ticker.Stop()
			for i := 0; ; i++ {
				select {
				case <-req.Context().Done():
					return
				case <-ticker.C:
					_, _ = w.Write(r.archive[i : i+1])
					_ = http.NewResponseController(w).Flush()
				}
			}
		}, "bytes in 50ms", 3},
		{"answers another range", func(r *release, w http.ResponseWriter, req *http.Request) {
			if req.Header.Get("Range") == "" {
				r.cut(w, 1000)
			}
			w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-9/%d", len(r.archive)))
			w.WriteHeader(http.StatusPartialContent)
		}, "attempts in a row brought nothing", 3},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := newRelease(t, c.handler)
			if c.name == "drips" {
				r.store.limits.window = 50 * time.Millisecond
			}
			_, err := r.store.Ensure(t.Context(), "firecracker")
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error does not say %q: %v", c.want, err)
			}
			if n := r.requests.Load(); n > c.asked {
				t.Errorf("%d requests, want at most %d", n, c.asked)
			}
			for _, name := range leftovers(t, r.store.dir) {
				if n := fileSize(filepath.Join(r.store.dir, name)); n > 1<<20 {
					t.Errorf("%s has %d bytes", name, n)
				}
			}
		})
	}
}

func TestOldVersionIsUsedOnlyWhenAllowed(t *testing.T) {
	r := newRelease(t, (*release).serve)
	v := r.store.manifest.Artifacts[0].Versions[0]
	v.Supported = false
	r.store.manifest.Artifacts[0].Versions[0] = v
	r.store.options.SupportedOnly = true
	if _, err := r.store.Ensure(t.Context(), "firecracker"); !errors.Is(err, ErrOlderNotTried) {
		t.Fatalf("error is %v", err)
	}
	if r.requests.Load() != 0 {
		t.Error("asked for what it may not use")
	}
	r.store.options.SupportedOnly = false
	got, err := r.store.Ensure(t.Context(), "firecracker")
	if err != nil || got.Supported {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestSourcesThatAreNotAllowedAreNotContacted(t *testing.T) {
	r := newRelease(t, (*release).serve)
	r.store.options.Sources = []Source{Cache, Package, Build}
	if _, err := r.store.Ensure(t.Context(), "firecracker"); err == nil || !strings.Contains(err.Error(), "not allowed by the list of sources") {
		t.Fatalf("error is %v", err)
	}
	if r.requests.Load() != 0 {
		t.Error("contacted the release page")
	}
}
