package httpapi

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"regexp"
	"sync"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/httpapi/gen"
	"github.com/microvmd/microvm/internal/httpapi/stamp"
	"github.com/microvmd/microvm/internal/ident"
)

// Bounds of tickets.
const (
	ticketPrefix = "mvt_"
	ticketParam  = "ticket"
	ticketLife   = time.Minute
	maxTickets   = 1024
)

// tickets are those that were made and not used. They are kept as hashes, and in
// memory only: a ticket lives for a minute.
type tickets struct {
	mu    sync.Mutex
	alive map[[sha256.Size]byte]ticket // guarded by mu
}

type ticket struct {
	path    string
	expires time.Time
}

// make makes a ticket for a GET of one path.
func (t *tickets) make(path string) (text string, expires time.Time, err error) {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // it never fails
	text = ticketPrefix + hex.EncodeToString(secret)
	now := time.Now()

	t.mu.Lock()
	defer t.mu.Unlock()
	first := now.Add(ticketLife)
	for hash, one := range t.alive {
		switch {
		case !now.Before(one.expires):
			delete(t.alive, hash)
		case one.expires.Before(first):
			first = one.expires
		}
	}
	if len(t.alive) >= maxTickets {
		full := fault.New(fault.RateLimited, "%d tickets are alive, and no more may be; use them, or repeat after the seconds in Retry-After", maxTickets)
		full.RetryAfter = first.Sub(now)
		return "", time.Time{}, full
	}
	if t.alive == nil {
		t.alive = map[[sha256.Size]byte]ticket{}
	}
	made := ticket{path: path, expires: now.Add(ticketLife)}
	t.alive[sha256.Sum256([]byte(text))] = made
	return text, made.expires, nil
}

// redeem uses a ticket up, if it is one for this request.
func (t *tickets) redeem(text, method, path string) error {
	hash := sha256.Sum256([]byte(text))
	t.mu.Lock()
	defer t.mu.Unlock()
	found, ok := t.alive[hash]
	if !ok || method != http.MethodGet || found.path != path {
		return badTicket()
	}
	delete(t.alive, hash)
	if !time.Now().Before(found.expires) {
		return badTicket()
	}
	return nil
}

// badTicket does not say which it is: who holds a ticket knows what it is for.
func badTicket() error {
	return fault.New(fault.TokenInvalid, "the ticket was used, is over a minute old, or is not for this path; make another with POST /v1/tickets")
}

// CreateTicket is POST /v1/tickets.
func (s *server) CreateTicket(_ context.Context, r gen.CreateTicketRequestObject) (gen.CreateTicketResponseObject, error) {
	if !takesTicket(r.Body.Path) {
		return nil, fault.Param("path", "path must be /v1/sandboxes/{sandbox}/executions/{execution}/stream or .../terminal with the two ids, and without a query")
	}
	text, expires, err := s.tickets.make(r.Body.Path)
	if err != nil {
		return nil, err
	}
	return gen.CreateTicket201JSONResponse{
		Body:    gen.Ticket{Object: gen.TicketObjectTicket, Ticket: text, Path: r.Body.Path, Expires: stamp.Time(expires)},
		Headers: gen.CreateTicket201ResponseHeaders{CacheControl: orNil("no-store")},
	}, nil
}

var ticketPath = regexp.MustCompile(`^/v1/sandboxes/([^/]+)/executions/([^/]+)/(?:stream|terminal)$`)

func takesTicket(path string) bool {
	parts := ticketPath.FindStringSubmatch(path)
	return parts != nil && ident.Valid(ident.Sandbox, parts[1]) && ident.Valid(ident.Execution, parts[2])
}
