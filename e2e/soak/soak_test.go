package soak_test

import (
	"context"
	"math/rand/v2"
	"os"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/microvmd/microvm/e2e/soak"
)

// number is a setting from the environment, or what it is otherwise.
func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestSoak does twenty thousand operations on fake hosts, each round on one of
// its own.
func TestSoak(t *testing.T) {
	const rounds = 8
	seed := number(t, "MICROVM_SOAK_SEED", rand.IntN(1<<31))
	operations := number(t, "MICROVM_SOAK_OPERATIONS", 20_000) / rounds
	for i := range rounds {
		t.Run("round", func(t *testing.T) {
			t.Parallel()
			soakFake(t, uint64(seed+i), operations)
		})
	}
}

func soakFake(t *testing.T, seed uint64, operations int) {
	const slots = 12
	f := newFake(t, slots)
	work := soak.Work{
		Driver: f, Seed: seed, Operations: operations, DaemonKills: operations / 40, VMMKills: operations / 60, Workers: 8, Most: slots - 1,
		Pace: soak.Pace{Lines: 40, Line: 10 * time.Millisecond, Look: 15 * time.Millisecond, Short: 3 * time.Second, Loud: 40_000, Timeout: time.Second},
	}
	t.Logf("repeat with MICROVM_SOAK_SEED=%d", seed)
	began := time.Now()
	history, err := work.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d operations and %d at the end in %s", operations, len(history)-operations, time.Since(began).Round(time.Millisecond))
	for _, line := range tell(history) {
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

// tell counts operations by verb and answer, and kills by where they struck.
func tell(history []soak.Operation) []string {
	verbs, steps := map[string]int{}, map[string]int{}
	for _, o := range history {
		verbs[strings.TrimSpace(string(o.Verb)+" "+string(o.Answer)+" "+o.Code)]++
		if o.Verb == soak.KillDaemon {
			steps["killed: "+o.Step]++
		}
	}
	var lines []string
	for _, counts := range []map[string]int{verbs, steps} {
		var some []string
		for what, n := range counts {
			some = append(some, strconv.Itoa(n)+" "+what)
		}
		sort.Strings(some)
		lines = append(lines, strings.Join(some, "; "))
	}
	return lines
}
