package httpapi

import (
	"net/http"
	"path"
	"strings"

	"github.com/microvmd/microvm/internal/fault"
)

// route is what the specification says of one operation, as far as it is
// needed before the generated code runs.
type route struct {
	query   map[string]bool // its query parameters
	bytes   map[string]bool // those that need not be UTF-8: paths
	keyless bool
	ticket  bool     // a ticket does instead of a key
	json    bool     // has a JSON body
	bodied  bool     // the JSON body must be there
	stream  bool     // has a body that is streamed and never held
	types   []string // that a streamed body may have
}

var methods = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

// route finds the operation, and refuses what no operation takes.
func (s *server) route(x *exchange, r *http.Request) {
	trusted := Trusted(r.Context())
	if !trusted {
		x.Header().Set("Connection", "close") // until a key answers for it
	}
	found, ok := s.find(x, r)
	if !ok {
		s.fail(x, r, unknownRoute(x, s.allowed(r)))
		return
	}
	if !found.keyless {
		if err := s.authenticate(r, found, trusted); err != nil {
			s.fail(x, r, err)
			return
		}
		x.Header().Del("Connection")
	}
	if err := checkQuery(r, found); err != nil {
		s.fail(x, r, err)
		return
	}
	if err := checkHeader(r, found); err != nil {
		s.fail(x, r, err)
		return
	}
	switch {
	case found.json && (found.bodied || r.ContentLength != 0):
		content, err := readJSON(r, s.MaxBodyBytes)
		if err != nil {
			s.fail(x, r, err)
			return
		}
		r.Body = content
	case !found.stream:
		if err := checkNoBody(r); err != nil {
			s.fail(x, r, err)
			return
		}
	}
	s.check(s.mux).ServeHTTP(x, r)
}

// find sets the exchange's pattern when the path and method have an operation.
// A path that is not clean is no route: a redirect would lose a body.
func (s *server) find(x *exchange, r *http.Request) (route, bool) {
	if r.Method == http.MethodHead || path.Clean(r.URL.EscapedPath()) != r.URL.EscapedPath() {
		return route{}, false
	}
	_, pattern := s.mux.Handler(r)
	found, ok := s.routes[pattern]
	if ok {
		x.pattern = pattern
	}
	return found, ok
}

// allowed lists the methods that the path has.
func (s *server) allowed(r *http.Request) []string {
	var allowed []string
	for _, method := range methods {
		other := *r
		other.Method = method
		if _, ok := s.find(&exchange{}, &other); ok {
			allowed = append(allowed, method)
		}
	}
	return allowed
}

// unknownRoute is 404 for a wrong method, too: the code is route_not_found
// either way, and a code has one status. Allow says what the path has.
func unknownRoute(x *exchange, allowed []string) error {
	if len(allowed) == 0 {
		return fault.New(fault.RouteNotFound, "no such route; /openapi.yaml lists those that exist")
	}
	list := strings.Join(allowed, ", ")
	x.Header().Set("Allow", list)
	return fault.New(fault.RouteNotFound, "this path does not have this method; it has %s", list)
}

// authenticate checks what came with a request for its key.
func (s *server) authenticate(r *http.Request, to route, trusted bool) error {
	keys := r.Header.Values("Authorization")
	if to.ticket && r.URL.Query().Has(ticketParam) {
		if len(keys) > 0 {
			return fault.Param(ticketParam, "a key and a ticket came together; send one of them")
		}
		return s.tickets.redeem(r.URL.Query().Get(ticketParam), r.Method, r.URL.Path)
	}
	if trusted {
		return nil
	}
	if len(keys) == 0 {
		return fault.New(fault.TokenMissing, "no key came with the request; send 'Authorization: Bearer mvk_...'")
	}
	scheme, token, ok := strings.Cut(keys[0], " ")
	token = strings.TrimSpace(token)
	if len(keys) > 1 || !ok || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return fault.New(fault.TokenInvalid, "the Authorization header is not 'Bearer mvk_...'; send exactly one of that form")
	}
	return s.Keys.Verify(r.Context(), token)
}
