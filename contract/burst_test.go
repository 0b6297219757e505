package contract

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// TestABurstOverCapacity: of 100 creates at once against room for ten, ten get in
// and ninety are told to come later; all room comes back.
func TestABurstOverCapacity(t *testing.T) {
	const callers, room = 100, 10
	d := start(t, "--slots", "10")
	client := d.remote()
	for range 2 { // the second time the room is what the first gave back
		type answer struct {
			id   string
			err  error
			took time.Duration
		}
		answers := make(chan answer, callers)
		var ready sync.WaitGroup
		ready.Add(callers)
		for range callers {
			go func() {
				ready.Done()
				ready.Wait()
				began := time.Now()
				sb, err := client.Sandboxes.Create(t.Context(), microvm.SandboxCreate{Image: "python"})
				a := answer{err: err, took: time.Since(began)}
				if err == nil {
					a.id = sb.ID
				}
				answers <- a
			}()
		}
		var in []string
		var refusals []time.Duration
		for range callers {
			a := <-answers
			var refused *microvm.Error
			switch {
			case a.err == nil:
				in = append(in, a.id)
			case errors.As(a.err, &refused) && refused.Code == "node_at_capacity" && refused.RetryAfter > 0:
				refusals = append(refusals, a.took)
			default:
				t.Fatalf("neither room nor a refusal: %v", a.err)
			}
		}
		if len(in) != room || len(refusals) != callers-room {
			t.Fatalf("%d got in, %d were refused", len(in), len(refusals))
		}
		slices.Sort(refusals)
		t.Logf("refused after %s (median), %s (last)", refusals[len(refusals)/2], refusals[len(refusals)-1])
		for _, id := range in {
			if _, err := client.Sandboxes.Delete(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
	}
}
