package testkit

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"

	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/sandbox"
)

// HandlerAgent makes agents that answer in this process with one handler: no
// network, no goroutine, so it runs on a synctest clock.
func HandlerAgent(handler http.Handler) AgentFactory {
	return func(sandbox.Plan) (http.RoundTripper, func(), error) {
		transport := roundTripper(func(r *http.Request) (*http.Response, error) {
			if err := r.Context().Err(); err != nil {
				return nil, err
			}
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, r)
			if err := r.Context().Err(); err != nil {
				return nil, err // as a real transport does
			}
			return recorder.Result(), nil
		})
		return transport, func() {}, nil
	}
}

// ConfiguredAgent answers echoes and Configure, and nothing else.
func ConfiguredAgent() AgentFactory {
	mux := http.NewServeMux()
	mux.HandleFunc(guestwire.RouteEcho, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(r.URL.Query().Get("text"))) //nolint:gosec // no browser reads it
	})
	mux.HandleFunc(guestwire.RouteConfigure, func(w http.ResponseWriter, r *http.Request) {
		var in guestwire.Configure
		_ = json.NewDecoder(r.Body).Decode(&in)
		_ = json.NewEncoder(w).Encode(guestwire.Configured{Generation: in.Generation})
	})
	return HandlerAgent(mux)
}
