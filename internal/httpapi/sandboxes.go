package httpapi

import (
	"context"
	"strings"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/httpapi/gen"
	"github.com/microvmd/microvm/internal/httpapi/stamp"
	"github.com/microvmd/microvm/internal/ident"
	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/secret"
)

// CreateSandbox is POST /v1/sandboxes.
func (s *server) CreateSandbox(ctx context.Context, r gen.CreateSandboxRequestObject) (gen.CreateSandboxResponseObject, error) {
	if err := checkTagKeys(r.Body.Tags); err != nil {
		return nil, err
	}
	idle, err := idleTime(r.Body.IdleSeconds)
	if err != nil {
		return nil, err
	}
	made, err := s.Sandboxes.Create(ctx, sandbox.Spec{
		Image:  r.Body.Image,
		Name:   value(r.Body.Name),
		Tags:   r.Body.Tags,
		VCPUs:  value(r.Body.Vcpus),
		MemMiB: value(r.Body.MemMib),
		TTL:    time.Duration(value(r.Body.TTLSeconds)) * time.Second,
		Idle:   idle,
		Boot:   sandbox.Boot(value(r.Body.Boot)),
		Env:    secret.Env(r.Body.Env),
	})
	if err != nil {
		return nil, err
	}
	return gen.CreateSandbox201JSONResponse(wireSandbox(made)), nil
}

// checkTagKeys refuses keys by which a list could not filter.
func checkTagKeys(tags gen.Tags) error {
	const most = 64 // bytes
	for key := range tags {
		if key == "" || len(key) > most || strings.Contains(key, ":") {
			return fault.Param("tags", "a tag's key must be 1 to %d bytes without a colon", most)
		}
	}
	return nil
}

// idleTime reads a field that the schema bounds only from above: the noun's own
// zero value is the default, and on the wire a zero is a mistake.
func idleTime(field *int) (time.Duration, error) {
	switch {
	case field == nil:
		return 0, nil
	case *field == 0:
		return 0, fault.Param("idle_seconds", "idle_seconds must be at least 1, or negative for never")
	case *field < 0:
		return -time.Second, nil
	default:
		return time.Duration(*field) * time.Second, nil
	}
}

// ListSandboxes is GET /v1/sandboxes.
func (s *server) ListSandboxes(ctx context.Context, r gen.ListSandboxesRequestObject) (gen.ListSandboxesResponseObject, error) {
	page, err := cursor(ident.Sandbox, r.Params.Limit, r.Params.StartingAfter, r.Params.EndingBefore)
	if err != nil {
		return nil, err
	}
	query := sandbox.Query{
		State:         sandbox.State(value(r.Params.State)),
		Name:          value(r.Params.Name),
		StartingAfter: page.after,
		EndingBefore:  page.before,
		Limit:         page.limit,
	}
	if r.Params.Tag != nil {
		query.TagKey, query.TagValue, _ = strings.Cut(*r.Params.Tag, ":")
	}
	found, err := s.Sandboxes.List(ctx, query)
	if err != nil {
		return nil, err
	}
	list := gen.ListSandboxes200JSONResponse{
		Object: gen.ListObjectList, URL: "/v1/sandboxes", HasMore: found.HasMore,
		Data: make([]gen.Sandbox, 0, len(found.Data)),
	}
	for _, one := range found.Data {
		list.Data = append(list.Data, wireSandbox(one))
	}
	return list, nil
}

// GetSandbox is GET /v1/sandboxes/{sandbox}.
func (s *server) GetSandbox(ctx context.Context, r gen.GetSandboxRequestObject) (gen.GetSandboxResponseObject, error) {
	if err := checkSandbox(r.Sandbox); err != nil {
		return nil, err
	}
	found, err := s.Sandboxes.Get(ctx, r.Sandbox)
	if err != nil {
		return nil, err
	}
	return gen.GetSandbox200JSONResponse(wireSandbox(found)), nil
}

// DeleteSandbox is DELETE /v1/sandboxes/{sandbox}.
func (s *server) DeleteSandbox(ctx context.Context, r gen.DeleteSandboxRequestObject) (gen.DeleteSandboxResponseObject, error) {
	if err := checkSandbox(r.Sandbox); err != nil {
		return nil, err
	}
	ended, err := s.Sandboxes.Delete(ctx, r.Sandbox)
	if err != nil {
		return nil, err
	}
	return gen.DeleteSandbox200JSONResponse(wireSandbox(ended)), nil
}

// ExtendSandbox is POST /v1/sandboxes/{sandbox}/extend.
func (s *server) ExtendSandbox(ctx context.Context, r gen.ExtendSandboxRequestObject) (gen.ExtendSandboxResponseObject, error) {
	if err := checkSandbox(r.Sandbox); err != nil {
		return nil, err
	}
	extended, err := s.Sandboxes.Extend(ctx, r.Sandbox, time.Duration(r.Body.TTLSeconds)*time.Second)
	if err != nil {
		return nil, err
	}
	return gen.ExtendSandbox200JSONResponse(wireSandbox(extended)), nil
}

// TouchSandbox is POST /v1/sandboxes/{sandbox}/touch.
func (s *server) TouchSandbox(ctx context.Context, r gen.TouchSandboxRequestObject) (gen.TouchSandboxResponseObject, error) {
	if err := checkSandbox(r.Sandbox); err != nil {
		return nil, err
	}
	touched, err := s.Sandboxes.Touch(ctx, r.Sandbox)
	if err != nil {
		return nil, err
	}
	return gen.TouchSandbox200JSONResponse(wireSandbox(touched)), nil
}

// checkSandbox keeps what is no id at all away from the stores.
func checkSandbox(id string) error {
	if !ident.Valid(ident.Sandbox, id) {
		return sandbox.NotFound()
	}
	return nil
}

func wireSandbox(s sandbox.Sandbox) gen.Sandbox {
	tags := gen.Tags(s.Tags)
	if tags == nil {
		tags = gen.Tags{}
	}
	return gen.Sandbox{
		ID:         s.ID,
		Object:     gen.SandboxObjectSandbox,
		Image:      s.Image,
		Name:       orNil(s.Name),
		State:      gen.SandboxState(s.State),
		StopReason: orNil(gen.SandboxStopReason(s.StopReason)),
		Reason:     orNil(gen.SandboxReason(s.Reason)),
		Boot:       orNil(gen.SandboxBoot(s.Boot)),
		Created:    stamp.Time(s.Created),
		Expires:    stamp.Time(s.Expires),
		Stopped:    wireTime(s.Stopped),
		Vcpus:      s.VCPUs,
		MemMib:     s.MemMiB,
		Tags:       tags,
	}
}

// wireTime is nil, null on the wire, for the zero time.
func wireTime(t time.Time) *stamp.Time {
	if t.IsZero() {
		return nil
	}
	wire := stamp.Time(t)
	return &wire
}

// value is what a pointer of an optional field points to, or the zero value.
func value[T any](field *T) T {
	if field == nil {
		var zero T
		return zero
	}
	return *field
}

// defaultLimit is the length of a page that asks for none.
const defaultLimit = 10

// span of a list that a caller asks for.
type listCursor struct {
	after, before string
	limit         int
}

func cursor(prefix ident.Prefix, limit *int, after, before *string) (listCursor, error) {
	c := listCursor{after: value(after), before: value(before), limit: defaultLimit}
	if limit != nil {
		c.limit = *limit
	}
	for name, id := range map[string]string{"starting_after": c.after, "ending_before": c.before} {
		if id != "" && !ident.Valid(prefix, id) {
			return c, fault.Param(name, "%s must be an id that begins with %s_; take it from a list", name, prefix)
		}
	}
	if c.after != "" && c.before != "" {
		return c, fault.Param("ending_before", "ending_before does not go together with starting_after; send one of them")
	}
	return c, nil
}
