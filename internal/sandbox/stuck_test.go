package sandbox_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/sandbox"
)

// stuckVMM has a disk on which a call hangs that no context ends, until it is
// let go, and then does what it was to do.
type stuckVMM struct {
	sandbox.VMM
	hang chan struct{} // nil: nothing hangs
}

func (v *stuckVMM) Prepare(ctx context.Context, plan sandbox.Plan) error {
	if hang := v.hang; hang != nil {
		<-hang
		ctx = context.WithoutCancel(ctx)
	}
	return v.VMM.Prepare(ctx, plan)
}

// TestAStepThatNoContextEnds: the create is answered, nobody else is held up, the
// slot stays taken as long as the call may still make something, and what it made
// in the end is removed.
func TestAStepThatNoContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		two := limits
		two.Slots = 2
		f := newFixture(t, two)
		vmm := &stuckVMM{VMM: f.host.VMM(), hang: make(chan struct{})}
		m, err := sandbox.New(sandbox.Config{
			Store: f.store, Images: images{}, Cgroups: f.host.Cgroups(), VMM: vmm, Agents: f.host.Agents(), Secrets: newKey(t),
			Limits: two, Logger: quiet, Uptime: uptime, HostBoot: "boot",
		})
		if err != nil {
			t.Fatal(err)
		}
		f.Manager = m
		began := time.Now()
		failed := make(chan error, 1)
		go func() { _, err := f.Create(t.Context(), spec); failed <- err }()
		synctest.Wait()
		stuck := vmm.hang
		vmm.hang = nil
		other, err := f.Create(t.Context(), spec)
		if err != nil || time.Since(began) != 0 {
			t.Fatalf("another sandbox was held up: %v", err)
		}
		if err := <-failed; !fault.Is(err, fault.InternalError) || time.Since(began) > two.StallTimeout+5*time.Second {
			t.Fatalf("answered after %s: %v", time.Since(began), err)
		}
		if _, err := f.List(t.Context(), sandbox.Query{Limit: 10}); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Delete(t.Context(), other.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // of the bubble's clock
		if sb, err := f.Create(t.Context(), spec); err != nil || sb.Slot == 0 {
			t.Fatalf("the slot of the one that hangs was given away: %+v %v", sb, err)
		}
		if _, err := f.Create(t.Context(), spec); !fault.Is(err, fault.NodeAtCapacity) {
			t.Fatalf("its room was given away: %v", err)
		}
		close(stuck)
		synctest.Wait()
		if _, err := f.Create(t.Context(), spec); err != nil {
			t.Fatalf("after it came back: %v", err)
		}
	})
}
