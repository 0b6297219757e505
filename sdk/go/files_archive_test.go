package microvm

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestArchivesAreCopied(t *testing.T) {
	content := strings.Repeat("a tar", 10_000)
	var got asked
	r := serve(t, handlers{func(w http.ResponseWriter, req *http.Request) {
		got.line = req.RequestURI
		_, _ = io.WriteString(w, content)
	}})
	gz := ArchiveFormatTarGz
	var to bytes.Buffer
	n, err := r.Files.DownloadArchive(t.Context(), sandboxID, ReadArchiveParams{Path: "d", Format: &gz, After: new("x")}, &to)
	if err != nil || n != int64(len(content)) || to.String() != content || !strings.HasSuffix(got.line, "/archive?after=x&format=tar.gz&path=d") {
		t.Fatalf("%d %v, asked for %s", n, err, got.line)
	}
	// One that breaks off is no whole one, and what was written is not written again.
	r = serve(t, handlers{cut("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nsome\r\n")})
	to.Reset()
	n, err = r.Files.DownloadArchive(t.Context(), sandboxID, ReadArchiveParams{Path: "d"}, &to)
	var lost *ConnectionError
	if n != 4 || !errors.As(err, &lost) || len(r.seen()) != 1 {
		t.Fatalf("%d %v %q", n, err, r.seen())
	}
}
