package storetest

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/ident"
	"github.com/microvmd/microvm/internal/sandbox"
)

// populations is how many sets of rows are paged through; rapid draws 100
// queries for each.
const populations = 3

// modelPage is what a page must be: all that match, oldest first, and a query.
func modelPage[T any](all []T, id func(T) string, match func(T) bool, after, before string, limit int) (data []T, more bool) {
	for _, item := range all {
		if match(item) && (after == "" || id(item) < after) && (before == "" || id(item) > before) {
			data = append(data, item)
		}
	}
	if more = len(data) > limit; more {
		if before != "" {
			data = data[:limit] // the ones just newer than the cursor
		} else {
			data = data[len(data)-limit:]
		}
	}
	data = slices.Clone(data)
	slices.Reverse(data)
	return data, more
}

// drawCursors draws one cursor or none: an id that is there, one that is not,
// or nonsense.
func drawCursors(t *rapid.T, ids []string) (after, before string) {
	cursor := rapid.OneOf(
		rapid.SampledFrom(append(ids, ident.New(ident.Sandbox))),
		rapid.StringMatching(`sb_01[0-9A-Z]{0,24}`),
	).Draw(t, "cursor")
	switch rapid.IntRange(0, 2).Draw(t, "direction") {
	case 0:
		return cursor, ""
	case 1:
		return "", cursor
	}
	return "", ""
}

func sandboxPages(t *testing.T, s Store) {
	states := []sandbox.State{sandbox.Starting, sandbox.Running, sandbox.Stopped}
	values := []string{"", "a", "b"}
	var all []sandbox.Sandbox
	var ids []string
	for p := range populations {
		for i := range 25 {
			sb := Sandbox()
			sb.State = states[(i*7+p)%3]
			if sb.State == sandbox.Stopped {
				sb = stop(sb, now())
			}
			if sb.Name = fmt.Sprint("n", i%4); sb.State != sandbox.Stopped {
				sb.Name = fmt.Sprint("n", p, "-", i)
			}
			if i%3 > 0 {
				sb.Tags = map[string]string{"team": values[i%3], "n": fmt.Sprint(i % 5)}
			}
			all = append(all, insert(t, s, sb))
			ids = append(ids, sb.ID)
		}
		// Some go away, so that their ids are cursors without a row.
		gone, err := s.DeleteStopped(t.Context(), all[10].Created)
		must(t, err)
		all = slices.DeleteFunc(all, func(sb sandbox.Sandbox) bool { return slices.Contains(gone, sb.ID) })

		rapid.Check(t, func(rt *rapid.T) {
			q := sandbox.Query{
				State: rapid.SampledFrom(append(states, "", "", "nonsense")).Draw(rt, "state"),
				Name:  rapid.SampledFrom([]string{"", "", "", "n0", "n1", "n1-7", "N0", "%"}).Draw(rt, "name"),
				Limit: rapid.SampledFrom([]int{1, 2, 3, 5, 10, 24, 25, 26, 100}).Draw(rt, "limit"),
			}
			q.StartingAfter, q.EndingBefore = drawCursors(rt, ids)
			if q.TagKey = rapid.SampledFrom([]string{"", "", "team", "n", "none"}).Draw(rt, "key"); q.TagKey != "" {
				q.TagValue = rapid.SampledFrom([]string{"", "a", "b", "1", "4"}).Draw(rt, "value")
			}
			match := func(sb sandbox.Sandbox) bool {
				value, tagged := sb.Tags[q.TagKey]
				return (q.State == "" || sb.State == q.State) && (q.Name == "" || sb.Name == q.Name) &&
					(q.TagKey == "" || tagged && value == q.TagValue)
			}
			data, more := modelPage(all, func(sb sandbox.Sandbox) string { return sb.ID }, match, q.StartingAfter, q.EndingBefore, q.Limit)
			got, err := s.Sandboxes(t.Context(), q)
			if err != nil {
				rt.Fatal(err)
			}
			if got.HasMore != more || len(got.Data) != len(data) || len(data) > 0 && !reflect.DeepEqual(got.Data, data) {
				rt.Fatalf("%+v:\ngot  %+v\nwant %+v more %v", q, got, data, more)
			}
		})
	}

	// Walking in either direction meets every row once.
	for _, back := range []bool{false, true} {
		var walked []string
		q := sandbox.Query{Limit: 7}
		if back {
			q.EndingBefore = "sb_0"
		}
		for {
			page, err := s.Sandboxes(t.Context(), q)
			must(t, err)
			part := make([]string, len(page.Data))
			for i, sb := range page.Data {
				part[i] = sb.ID
			}
			if back {
				walked, q.EndingBefore = append(part, walked...), part[0]
			} else {
				walked, q.StartingAfter = append(walked, part...), part[len(part)-1]
			}
			if !page.HasMore {
				break
			}
		}
		var want []string
		for _, sb := range slices.Backward(all) {
			want = append(want, sb.ID)
		}
		equal(t, walked, want)
	}
}

func executionPages(t *testing.T, s Store) {
	sandboxes := []string{insert(t, s, Sandbox()).ID, insert(t, s, Sandbox()).ID}
	all := map[string][]execution.Execution{}
	var ids []string
	for i := range 40 {
		e := Execution(sandboxes[i%3%2])
		if i%4 == 0 {
			e = exit(e, i)
		}
		must(t, s.InsertExecution(t.Context(), e))
		all[e.Sandbox] = append(all[e.Sandbox], e)
		ids = append(ids, e.ID)
	}
	check := func(rt *rapid.T) {
		q := execution.Query{
			Sandbox: rapid.SampledFrom(append(sandboxes, "sb_none")).Draw(rt, "sandbox"),
			Limit:   rapid.SampledFrom([]int{1, 2, 5, 13, 26, 27, 100}).Draw(rt, "limit"),
		}
		q.StartingAfter, q.EndingBefore = drawCursors(rt, ids)
		data, more := modelPage(all[q.Sandbox], func(e execution.Execution) string { return e.ID },
			func(execution.Execution) bool { return true }, q.StartingAfter, q.EndingBefore, q.Limit)
		got, err := s.Executions(t.Context(), q)
		if err != nil {
			rt.Fatal(err)
		}
		if got.HasMore != more || len(got.Data) != len(data) || len(data) > 0 && !reflect.DeepEqual(got.Data, data) {
			rt.Fatalf("%+v:\ngot  %+v\nwant %+v more %v", q, got, data, more)
		}
	}
	for range populations {
		rapid.Check(t, check)
	}
}

func badPages(t *testing.T, s Store) {
	for _, limit := range []int{-1, 0, 101} {
		_, err := s.Sandboxes(t.Context(), sandbox.Query{Limit: limit})
		wantCode(t, err, fault.ParameterInvalid)
		_, err = s.Executions(t.Context(), execution.Query{Sandbox: "sb_none", Limit: limit})
		wantCode(t, err, fault.ParameterInvalid)
	}
	_, err := s.Sandboxes(t.Context(), sandbox.Query{Limit: 1, StartingAfter: "sb_1", EndingBefore: "sb_2"})
	wantCode(t, err, fault.ParameterInvalid)
	page, err := s.Sandboxes(t.Context(), sandbox.Query{Limit: 1})
	must(t, err)
	if page.HasMore || len(page.Data) > 0 {
		t.Fatalf("an empty store has %+v", page)
	}
}
