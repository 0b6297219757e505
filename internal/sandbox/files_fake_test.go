package sandbox_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/testkit"
)

// fileAgent is an agent whose file calls are answered by a test.
type fileAgent struct {
	calls  atomic.Int64 // of files
	answer http.HandlerFunc
}

func (a *fileAgent) factory() testkit.AgentFactory {
	mux := http.NewServeMux()
	mux.HandleFunc(guestwire.RouteConfigure, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"generation":1}`))
	})
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		a.calls.Add(1)
		a.answer(w, r)
	})
	return testkit.ServedAgent(mux)
}

// refuse answers as an agent that refuses.
func refuse(code guestwire.Code, detail string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(code.Status())
		_ = json.NewEncoder(w).Encode(guestwire.Error{Code: code, Detail: detail})
	}
}

// hangs takes what is sent and never answers.
func hangs(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // net/http looks for the end of a connection only then
	<-r.Context().Done()
}

// entryOf is the entry of a file at an absolute path.
func entryOf(path string) guestwire.Entry {
	return guestwire.Entry{Path: path, Type: guestwire.TypeFile, Mode: "0644"}
}

func answerJSON(t *testing.T, value any) http.HandlerFunc {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = w.Write(text)
	}
}

var long = strings.Repeat("p", guestwire.MaxPath+1)

var errLeft = errors.New("the caller has left")
