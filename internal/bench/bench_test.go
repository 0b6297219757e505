package bench

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func ms(values ...int) []time.Duration {
	var all []time.Duration
	for _, v := range values {
		all = append(all, time.Duration(v)*time.Millisecond)
	}
	return all
}

func TestSummarize(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = 100 - i
	}
	for _, test := range []struct {
		name        string
		in          []time.Duration
		median, p95 float64
	}{
		{"none", nil, 0, 0},
		{"one", ms(7), 7, 7},
		{"odd, out of order", ms(9, 1, 5), 5, 9},
		{"even", ms(4, 1, 3, 2), 2.5, 4},
		{"19: the greatest", ms(hundred[81:]...), 10, 19},
		{"20: not the greatest", ms(hundred[80:]...), 10.5, 19},
		{"100", ms(hundred...), 50.5, 95},
		{"parts of a millisecond", []time.Duration{1_234_567}, 1.235, 1.235},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := Summarize(test.in)
			if got.Median != test.median || got.P95 != test.p95 || len(got.Samples) != len(test.in) {
				t.Errorf("median %v, p95 %v, want %v, %v", got.Median, got.P95, test.median, test.p95)
			}
		})
	}
	if got := Summarize(ms(3, 1, 2)).Samples; !slices.Equal(got, []float64{3, 1, 2}) {
		t.Errorf("samples are %v, not in the order in which they were taken", got)
	}
}

// fake is a figure whose sides take what the test says, and a diary of calls.
func fake(diary *[]string, subject, floor func() (time.Duration, error)) figure {
	side := func(name string, do func() (time.Duration, error)) sample {
		return func(context.Context) (time.Duration, error) {
			*diary = append(*diary, name)
			return do()
		}
	}
	return figure{
		name: "fake", title: "fake", subject: "ours", floor: "bare", goal: 1.5, each: 1,
		open: func(_ context.Context, back *undo) (sample, sample, error) {
			for _, name := range []string{"first", "second"} {
				back.add(name, func() error { *diary = append(*diary, "undo "+name); return nil })
			}
			return side("ours", subject), side("bare", floor), nil
		},
	}
}

func always(value int) func() (time.Duration, error) {
	return func() (time.Duration, error) { return time.Duration(value) * time.Millisecond, nil }
}

func TestMeasureTakesTurns(t *testing.T) {
	var diary []string
	got, err := fake(&diary, always(30), always(20)).measure(t.Context(), 2, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"ours", "bare", "bare", "ours", "ours", "bare", "undo second", "undo first"}
	if !slices.Equal(diary, want) {
		t.Errorf("calls were %v, want %v", diary, want)
	}
	if len(got.Measured.Samples) != 2 || len(got.Floor.Samples) != 2 {
		t.Error("the round to warm up was counted")
	}
	if got.Ratio != 1.5 || !got.GoalMet {
		t.Errorf("ratio %v, met %v", got.Ratio, got.GoalMet)
	}
}

// TestMeasureCleansUp fails each side at each of its calls, and interrupts.
func TestMeasureCleansUp(t *testing.T) {
	broken := errors.New("broken")
	for at := range 3 {
		for _, side := range []string{"ours", "bare"} {
			var diary []string
			calls := 0
			failing := func() (time.Duration, error) {
				if calls++; calls > at {
					return 0, broken
				}
				return time.Millisecond, nil
			}
			f := fake(&diary, failing, always(1))
			if side == "bare" {
				f = fake(&diary, always(1), failing)
			}
			if _, err := f.measure(t.Context(), 2, io.Discard); !errors.Is(err, broken) {
				t.Errorf("%s fails at call %d: %v", side, at, err)
			}
			if n := len(diary); n < 2 || diary[n-2] != "undo second" || diary[n-1] != "undo first" {
				t.Errorf("%s fails at call %d: not undone: %v", side, at, diary)
			}
		}
	}
	var diary []string
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	f := fake(&diary, func() (time.Duration, error) { cancel(stop); return 0, errors.New("cut off") }, always(1))
	if _, err := f.measure(ctx, 2, io.Discard); !errors.Is(err, stop) || diary[len(diary)-1] != "undo first" {
		t.Errorf("after an interruption: %v, %v", err, diary)
	}
}

func TestMeasureReportsFailedCleanUp(t *testing.T) {
	left, broken := errors.New("left"), errors.New("broken")
	f := figure{name: "fake", each: 1, open: func(_ context.Context, back *undo) (sample, sample, error) {
		back.add("remove it", func() error { return left })
		return nil, nil, broken
	}}
	if _, err := f.measure(t.Context(), 1, io.Discard); !errors.Is(err, left) || !errors.Is(err, broken) || !strings.Contains(err.Error(), "remove it") {
		t.Error(err)
	}
}

func TestUndoRunsEveryStepOnce(t *testing.T) {
	var u undo
	var ran []int
	for i := range 3 {
		u.add("step", func() error { ran = append(ran, i); return errors.New("no") })
	}
	if err := u.run(); err == nil || strings.Count(err.Error(), "step: no") != 3 {
		t.Error(err)
	}
	if err := u.run(); err != nil || !reflect.DeepEqual(ran, []int{2, 1, 0}) {
		t.Error(ran, err)
	}
}

func report(t *testing.T) Report {
	t.Helper()
	var none []string
	both, err := fake(&none, always(1300), always(1000)).measure(t.Context(), 1, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	slow, err := fake(&none, always(160), always(80)).measure(t.Context(), 1, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return Report{
		Object: "benchmark", Rounds: 1, Figures: []Result{both, slow},
		Host: Host{Kernel: "6.1", Arch: "amd64", CPUs: 2, KVM: "emulated", Firecracker: "1.17.0", VCPUs: 1, MemMiB: 256, Image: "python"},
	}
}

func TestTable(t *testing.T) {
	const want = `Linux 6.1 amd64, 2 CPUs, KVM emulated, Firecracker 1.17.0; python with 1 vCPU and 256 MiB; 1 rounds

FIGURE  MEDIAN  P95     FLOOR     FLOOR P95  RATIO  GOAL
fake    1.30 s  1.30 s  1.00 s    1.00 s     1.30x  <= 1.50x, met
fake    160 ms  160 ms  80.00 ms  80.00 ms   2.00x  <= 1.50x, MISSED

fake: ours. Floor: bare.
fake: ours. Floor: bare.

This host's KVM is not hardware: only the ratios mean something.
`
	if got := report(t).Table(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestJSON(t *testing.T) {
	data, err := json.Marshal(report(t).Figures[1])
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"name":"fake","title":"fake","measured_is":"ours","floor_is":"bare","measured":{"median_ms":160,"p95_ms":160,"samples_ms":[160]},"floor":{"median_ms":80,"p95_ms":80,"samples_ms":[80]},"ratio":2,"goal":1.5,"goal_met":false}`
	if string(data) != want {
		t.Errorf("got  %s\nwant %s", data, want)
	}
}
