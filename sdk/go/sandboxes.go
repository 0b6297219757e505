package microvm

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
)

// SandboxService creates, finds, extends and deletes sandboxes.
type SandboxService struct{ c *Client }

// Create makes a sandbox and returns when it is running. Only Image is
// required; optional fields are pointers: new(512) is one. A node that is full
// answers node_at_capacity. It is repeated only when no connection could be
// made; after a *ConnectionError with Sent a sandbox may exist, and ends with
// its idle time or its TTL.
func (s *SandboxService) Create(ctx context.Context, spec SandboxCreate) (*Sandbox, error) {
	out := new(Sandbox)
	if err := s.c.call(ctx, request{verb: "create sandbox", method: http.MethodPost, path: "/v1/sandboxes", json: spec}, out); err != nil {
		return nil, err
	}
	return out, nil
}

// Retrieve gets one sandbox by its id; one that stopped stays readable for a while.
func (s *SandboxService) Retrieve(ctx context.Context, id string) (*Sandbox, error) {
	return s.one(ctx, request{verb: "get sandbox", method: http.MethodGet}, id, "")
}

// Delete kills a sandbox at once and returns it, stopped, when nothing of it is
// left. Deleting one that has stopped changes nothing and is no error.
func (s *SandboxService) Delete(ctx context.Context, id string) (*Sandbox, error) {
	return s.one(ctx, request{verb: "delete sandbox", method: http.MethodDelete}, id, "")
}

// Extend moves the end of a running sandbox's TTL to ttlSeconds from now, unless
// it ends later already, and returns it with its new Expires. What is beyond the
// node's maximum life, counted from Created, is refused and changes nothing.
func (s *SandboxService) Extend(ctx context.Context, id string, ttlSeconds int) (*Sandbox, error) {
	return s.one(ctx, request{verb: "extend sandbox", method: http.MethodPost, json: SandboxExtend{TTLSeconds: ttlSeconds}}, id, "/extend")
}

// Touch counts as use of a running sandbox: its idle time begins anew. Running
// executions and file transfers do the same by themselves. It is repeated after
// a lost connection, as touching twice is touching once.
func (s *SandboxService) Touch(ctx context.Context, id string) (*Sandbox, error) {
	return s.one(ctx, request{verb: "touch sandbox", method: http.MethodPost, again: true}, id, "/touch")
}

// one makes a request about one sandbox, to its path and what follows it.
func (s *SandboxService) one(ctx context.Context, r request, id, below string) (*Sandbox, error) {
	segment, err := escape("a sandbox", id)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.verb, err)
	}
	r.path = "/v1/sandboxes/" + segment + below
	out := new(Sandbox)
	if err := s.c.call(ctx, r, out); err != nil {
		return nil, err
	}
	return out, nil
}

// List gets one page of sandboxes, newest first.
func (s *SandboxService) List(ctx context.Context, params ListSandboxesParams) (*SandboxList, error) {
	query := page(params.Limit, params.StartingAfter, params.EndingBefore)
	if params.State != nil {
		query.Set("state", string(*params.State))
	}
	if params.Tag != nil {
		query.Set("tag", *params.Tag)
	}
	if params.Name != nil {
		query.Set("name", *params.Name)
	}
	out := new(SandboxList)
	if err := s.c.call(ctx, request{verb: "list sandboxes", method: http.MethodGet, path: "/v1/sandboxes", query: query}, out); err != nil {
		return nil, err
	}
	return out, nil
}

// All iterates over all sandboxes that match, newest first, page by page. It
// stops at the first error, which it yields. Limit is the size of a page
// (default 100); EndingBefore is ignored.
func (s *SandboxService) All(ctx context.Context, params ListSandboxesParams) iter.Seq2[Sandbox, error] {
	params.EndingBefore = nil
	return all(params.Limit, params.StartingAfter, func(limit int, after *string) ([]Sandbox, bool, error) {
		params.Limit, params.StartingAfter = &limit, after
		list, err := s.List(ctx, params)
		if err != nil {
			return nil, false, err
		}
		return list.Data, list.HasMore, nil
	}, func(sb Sandbox) string { return sb.ID })
}

// page makes the query of one page.
func page(limit *int, after, before *string) url.Values {
	query := url.Values{}
	if limit != nil {
		query.Set("limit", strconv.Itoa(*limit))
	}
	if after != nil {
		query.Set("starting_after", *after)
	}
	if before != nil {
		query.Set("ending_before", *before)
	}
	return query
}

// all yields the items of all pages. A server that says "more" and gives
// nothing does not hold it.
func all[T any](limit *int, after *string, get func(int, *string) ([]T, bool, error), id func(T) string) iter.Seq2[T, error] {
	size := 100
	if limit != nil {
		size = *limit
	}
	return func(yield func(T, error) bool) {
		cursor := after
		for {
			items, more, err := get(size, cursor)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if !more || len(items) == 0 {
				return
			}
			last := id(items[len(items)-1])
			if cursor != nil && *cursor == last {
				return
			}
			cursor = &last
		}
	}
}
