package microvm

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

func written(got *bytes.Buffer, request **http.Request) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		*request = r
		_, _ = io.Copy(got, r.Body)
		reply(201, File{Object: FileObjectFile, Path: "/workspace/main.py", Size: int64(got.Len()), Mode: "0755"})(w, r)
	}
}

func TestFilesGoInAsTheyAre(t *testing.T) {
	content := bytes.Repeat([]byte{0, 0xff, '\n', 'x'}, 100_000)
	for name, send := range map[string]func(*Client) (*File, error){
		"write": func(c *Client) (*File, error) {
			return c.Files.Write(t.Context(), sandboxID, "a b/&.py", content, WithMode(0o755))
		},
		"upload of known size": func(c *Client) (*File, error) {
			return c.Files.Upload(t.Context(), sandboxID, "a b/&.py", bytes.NewReader(content), WithMode(0o755))
		},
		"upload of unknown size": func(c *Client) (*File, error) {
			return c.Files.Upload(t.Context(), sandboxID, "a b/&.py", io.MultiReader(bytes.NewReader(content)), WithMode(0o755))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			var request *http.Request
			r := serve(t, handlers{written(&got, &request)})
			file, err := send(r.Client)
			if err != nil || file.Size != int64(len(content)) {
				t.Fatalf("%v %v", file, err)
			}
			if !bytes.Equal(got.Bytes(), content) {
				t.Fatal("the bytes changed on their way")
			}
			if q := request.URL.Query(); q.Get("path") != "a b/&.py" || q.Get("mode") != "0755" || request.Header.Get("Content-Type") != "application/octet-stream" {
				t.Fatalf("%v %v", request.URL, request.Header)
			}
		})
	}
}

func TestAnEmptyFileIsAFile(t *testing.T) {
	var got bytes.Buffer
	var request *http.Request
	r := serve(t, handlers{written(&got, &request)})
	if _, err := r.Files.Write(t.Context(), sandboxID, "empty", nil); err != nil {
		t.Fatal(err)
	}
	if request.ContentLength != 0 || request.Method != http.MethodPut {
		t.Fatalf("%s with %d bytes", request.Method, request.ContentLength)
	}
}

type brokenReader struct{ err error }

func (b brokenReader) Read([]byte) (int, error) { return 0, b.err }

func TestAReaderThatFailsIsNotTheConnection(t *testing.T) {
	broken := errors.New("bad disk")
	r := serve(t, handlers{func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		panic(http.ErrAbortHandler)
	}})
	_, err := r.Files.Upload(t.Context(), sandboxID, "x", io.MultiReader(strings.NewReader("some"), brokenReader{broken}))
	var lost *ConnectionError
	if !errors.Is(err, broken) || errors.As(err, &lost) {
		t.Fatalf("error %v", err)
	}
}

func TestARefusedUploadIsNotLost(t *testing.T) {
	r := serve(t, handlers{func(w http.ResponseWriter, req *http.Request) { // refuses without reading
		w.Header().Set("Connection", "close")
		w.WriteHeader(409)
		_, _ = io.WriteString(w, `{"error":{"type":"invalid_request_error","code":"sandbox_not_running","message":"it has stopped"}}`)
	}})
	endless := io.LimitReader(brokenReader{io.ErrUnexpectedEOF}, 1<<40)
	_, err := r.Files.Upload(t.Context(), sandboxID, "x", endless)
	if !HasCode(err, ErrorCodeSandboxNotRunning) {
		t.Fatalf("error %v", err)
	}
}

func TestDownloads(t *testing.T) {
	content := strings.Repeat("0123456789", 10_000)
	whole := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, content) }
	half := cut("HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: 100\r\n\r\nsome")

	r := serve(t, handlers{half, whole})
	got, err := r.Files.Read(t.Context(), sandboxID, "x")
	if err != nil || string(got) != content || len(r.seen()) != 2 {
		t.Fatalf("read %d bytes, %v, %v", len(got), err, r.seen())
	}

	// What was written to a writer cannot be taken back, so that is not repeated.
	r = serve(t, handlers{half, whole})
	var w bytes.Buffer
	n, err := r.Files.Download(t.Context(), sandboxID, "x", &w)
	var lost *ConnectionError
	if n != 4 || !errors.As(err, &lost) || !strings.Contains(err.Error(), "4 of 100 bytes") || len(r.seen()) != 1 {
		t.Fatalf("%d %v %v", n, err, r.seen())
	}

	r = serve(t, handlers{cut(""), whole})
	w.Reset()
	if n, err := r.Files.Download(t.Context(), sandboxID, "x", &w); err != nil || n != int64(len(content)) || w.String() != content {
		t.Fatalf("%d %v", n, err)
	}

	r = serve(t, handlers{refusal(404, ErrorTypeInvalidRequestError, ErrorCodeFileNotFound)})
	if _, err := r.Files.Read(t.Context(), sandboxID, "x"); !HasCode(err, ErrorCodeFileNotFound) {
		t.Fatalf("error %v", err)
	}
	if _, err := r.Files.Read(t.Context(), sandboxID, ""); err == nil {
		t.Fatal("an empty path was sent")
	}
}
