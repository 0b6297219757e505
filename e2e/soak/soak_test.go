package soak_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/microvmd/microvm/e2e/soak"
)

// TestSoak does twenty thousand operations on fake hosts, each round on one of
// its own.
func TestSoak(t *testing.T) {
	const each = 2500
	seed := soak.Setting(t, "MICROVM_SOAK_SEED", rand.IntN(1<<31))
	rounds := soak.Setting(t, "MICROVM_SOAK_OPERATIONS", 20_000) / each
	for i := range rounds {
		t.Run("round", func(t *testing.T) {
			t.Parallel()
			soakFake(t, uint64(seed+i), each)
		})
	}
}

func soakFake(t *testing.T, seed uint64, operations int) {
	const slots = 12
	f := newFake(t, slots)
	work := soak.Work{
		Driver: f, Seed: seed, Operations: operations, DaemonKills: operations / 40, VMMKills: operations / 60, Workers: 8, Most: slots - 1,
		Pace: soak.Pace{
			Lines: 40, Line: 10 * time.Millisecond, Loud: 40_000, Look: 15 * time.Millisecond,
			Short: time.Second, Shorts: 3 * time.Second, Timeout: time.Second, Calm: 20 * time.Millisecond,
		},
	}
	t.Logf("repeat with MICROVM_SOAK_SEED=%d", seed)
	began := time.Now()
	history, err := work.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d operations and %d at the end in %s", operations, len(history)-operations, time.Since(began).Round(time.Millisecond))
	for _, line := range soak.Tell(history) {
		t.Log(line)
	}
	report(t, soak.Check(history, soak.Node{Slots: slots, Grace: 5 * time.Second, Loud: 1 << 20}))
	for _, wrong := range f.guests.bad() {
		t.Error(wrong)
	}
	if err := f.life.sandboxes.Close(context.Background(), true); err != nil {
		t.Error(err)
	}
	f.life.executions.Close()
	if left := f.host.Left(); len(left) > 0 {
		t.Errorf("left on the host: %v", left)
	}
}

// report fails the test for what is wrong, and shows some of it.
func report(t *testing.T, wrong []string) {
	t.Helper()
	const most = 20
	if len(wrong) > most {
		t.Errorf("%d things are wrong; the first %d:", len(wrong), most)
		wrong = wrong[:most]
	}
	for _, what := range wrong {
		t.Error(what)
	}
}
