package execution_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/testkit"
)

// heard is all that a reader was told.
type heard struct {
	text      [2]bytes.Buffer
	truncated int64 // bytes that it was told to have missed
	started   int
	last      execution.Event
}

// hear reads to the end. Each event must go on where the one before it ended.
func hear(ctx context.Context, f *execution.Follower, each func(execution.Event)) (*heard, error) {
	h := new(heard)
	next := map[execution.Stream]int64{execution.Stdout: f.Position().Stdout, execution.Stderr: f.Position().Stderr}
	for {
		event, err := f.Next(ctx)
		if errors.Is(err, io.EOF) {
			return h, nil
		}
		if err != nil {
			return h, err
		}
		h.last = event
		switch event.Kind {
		case execution.EventStarted:
			h.started++
		case execution.EventOutput:
			if event.Offset != next[event.Stream] || len(event.Data) == 0 || len(event.Data) > 32<<10 {
				return h, fmt.Errorf("%s: %d bytes at %d, want them at %d", event.Stream, len(event.Data), event.Offset, next[event.Stream])
			}
			next[event.Stream] += int64(len(event.Data))
			i := 0
			if event.Stream == execution.Stderr {
				i = 1
			}
			h.text[i].Write(event.Data)
		case execution.EventTruncated:
			if event.Offset != next[event.Stream] || event.To <= event.Offset {
				return h, fmt.Errorf("%s: truncated %d to %d, was at %d", event.Stream, event.Offset, event.To, next[event.Stream])
			}
			h.truncated += event.To - event.Offset
			next[event.Stream] = event.To
		case execution.EventEnded:
		}
		if p := f.Position(); p.Stdout != next[execution.Stdout] || p.Stderr != next[execution.Stderr] {
			return h, fmt.Errorf("position %+v, told %v", p, next)
		}
		if each != nil {
			each(event)
		}
	}
}

func (f *fixture) follow(t *testing.T, e execution.Execution, from execution.Position) *execution.Follower {
	t.Helper()
	follower, err := f.Follow(t.Context(), f.sb.ID, e.ID, from)
	if err != nil {
		t.Fatal(err)
	}
	return follower
}

// TestFollowersHearAllOfIt: those that come before the first byte, in the middle
// and after the end, ten at once, and one that comes back at each offset.
func TestFollowersHearAllOfIt(t *testing.T) {
	f := newFixture(t, testkit.GuestAgent(t.TempDir()))
	gate := filepath.Join(t.TempDir(), "gate")
	e, err := f.Start(t.Context(), f.sb.ID, sh(`printf 'first\n'; until [ -e `+gate+` ]; do sleep 0.01; done; printf 'a\000\377\342\202'; printf '\254' ; seq 1 20000; echo oops >&2; exit 3`))
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	results := make([]*heard, 10)
	for i := range results {
		follower := f.follow(t, e, execution.Position{})
		all.Go(func() {
			var once sync.Once
			var err error
			results[i], err = hear(t.Context(), follower, func(event execution.Event) {
				if event.Kind == execution.EventOutput && i == 0 {
					once.Do(func() { _ = os.WriteFile(gate, nil, 0o600) }) // it goes on when the first line was heard
				}
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	want := new(bytes.Buffer)
	want.WriteString("first\na\x00\xff\xe2\x82\xac")
	for i := 1; i <= 20000; i++ {
		fmt.Fprintln(want, i)
	}
	after, err := hear(t.Context(), f.follow(t, e, execution.Position{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, h := range append(results, after) {
		if !bytes.Equal(h.text[0].Bytes(), want.Bytes()) || h.text[1].String() != "oops\n" || h.truncated != 0 || h.started != 1 {
			t.Errorf("reader %d: %d bytes of stdout, %q, %d truncated, started %d times", i, h.text[0].Len(), h.text[1].String(), h.truncated, h.started)
		}
		if h.last.Kind != execution.EventEnded || *h.last.Execution.ExitCode != 3 {
			t.Errorf("reader %d: last %+v", i, h.last)
		}
	}
	for _, from := range []int64{1, 7, 9, 100, int64(want.Len()) - 1, int64(want.Len()), int64(want.Len()) + 5} {
		h, err := hear(t.Context(), f.follow(t, e, execution.Position{Stdout: from}), nil)
		if err != nil {
			t.Fatal(err)
		}
		if rest := want.Bytes()[min(from, int64(want.Len())):]; !bytes.Equal(h.text[0].Bytes(), rest) || h.started != 0 {
			t.Errorf("from %d: %d bytes, want %d", from, h.text[0].Len(), len(rest))
		}
	}
}

// TestASlowFollowerIsToldWhatItMissed, and holds nobody back: the program ends
// while the reader has taken one event, and what it missed is declared to the byte.
func TestASlowFollowerIsToldWhatItMissed(t *testing.T) {
	f := newFixture(t, testkit.GuestAgent(t.TempDir()))
	e, err := f.Start(t.Context(), f.sb.ID, sh("echo first; seq 1 500000"))
	if err != nil {
		t.Fatal(err)
	}
	follower := f.follow(t, e, execution.Position{})
	if event, err := follower.Next(t.Context()); err != nil || event.Kind != execution.EventStarted {
		t.Fatalf("%+v %v", event, err)
	}
	ended, err := f.Wait(t.Context(), f.sb.ID, e.ID, time.Minute)
	if err != nil || ended.Status != execution.Exited {
		t.Fatalf("%+v %v", ended, err)
	}
	h, err := hear(t.Context(), follower, nil)
	if err != nil {
		t.Fatal(err)
	}
	if h.truncated == 0 || h.truncated+int64(h.text[0].Len()) != ended.StdoutBytes || !strings.HasSuffix(h.text[0].String(), "\n500000\n") {
		t.Fatalf("truncated %d, heard %d of %d", h.truncated, h.text[0].Len(), ended.StdoutBytes)
	}
}

// TestFollowersTakeNoMemory: a thousand that never read hold less than a
// kilobyte each.
func TestFollowersTakeNoMemory(t *testing.T) {
	f := newFixture(t, testkit.GuestAgent(t.TempDir()))
	e := f.run(t, sh("seq 1 100000"))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	all := make([]*execution.Follower, 1000)
	for i := range all {
		all[i] = f.follow(t, e, execution.Position{})
		if _, err := all[i].Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / int64(len(all)); each > 1024 {
		t.Errorf("%d bytes each", each)
	}
	runtime.KeepAlive(all)
}

// TestAFollowerThatGoesAwayLeavesNothing: Next ends with its context, and the
// reader goes on after that, or not.
func TestAFollowerThatGoesAwayLeavesNothing(t *testing.T) {
	f := newFixture(t, testkit.GuestAgent(t.TempDir()))
	e, err := f.Start(t.Context(), f.sb.ID, sh("read line; echo $line"))
	if err != nil {
		t.Fatal(err)
	}
	if ended, err := f.Wait(t.Context(), f.sb.ID, e.ID, time.Minute); err != nil || ended.Status != execution.Exited { // stdin is empty
		t.Fatalf("%+v %v", ended, err)
	}
	if e, err = f.Start(t.Context(), f.sb.ID, execution.Spec{Cmd: "sleep", Args: []string{"600"}}); err != nil {
		t.Fatal(err)
	}
	follower := f.follow(t, e, execution.Position{})
	if event, err := follower.Next(t.Context()); err != nil || event.Kind != execution.EventStarted || event.PID < 2 {
		t.Fatalf("%+v %v", event, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if event, err := follower.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%+v %v", event, err)
	}
	if _, err := f.Cancel(t.Context(), f.sb.ID, e.ID, execution.Cancel{}); err != nil {
		t.Fatal(err)
	}
	if event, err := follower.Next(t.Context()); err != nil || event.Kind != execution.EventEnded || event.Execution.Status != execution.Canceled {
		t.Fatalf("%+v %v", event, err)
	}
	if _, err := follower.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

// TestAFollowerIsLetGoWhenTheDaemonStops, and goes on with the next one where it
// was.
func TestAFollowerIsLetGoWhenTheDaemonStops(t *testing.T) {
	n := newNode(t, testkit.GuestAgent(t.TempDir()))
	first := n.start(n.store)
	e := first.begin(t, execution.Spec{Cmd: "sh", Args: []string{"-c", "i=0; while [ $i -lt 400 ]; do echo $i; i=$((i+1)); sleep 0.005; done"}, Timeout: time.Minute})
	follower, err := first.Follow(t.Context(), e.Sandbox, e.ID, execution.Position{})
	if err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	before, err := hear(t.Context(), follower, func(event execution.Event) {
		if event.Kind == execution.EventOutput && event.Offset > 100 {
			once.Do(func() { go first.leave(t, false) })
		}
	})
	if !fault.Is(err, fault.ShuttingDown) {
		t.Fatal(err)
	}
	next := n.start(n.store)
	if follower, err = next.Follow(t.Context(), e.Sandbox, e.ID, follower.Position()); err != nil {
		t.Fatal(err)
	}
	after, err := hear(t.Context(), follower, nil)
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for i := range 400 {
		fmt.Fprintln(&want, i)
	}
	if got := before.text[0].String() + after.text[0].String(); got != want.String() {
		t.Errorf("%d bytes before and %d after, want %d together", before.text[0].Len(), after.text[0].Len(), want.Len())
	}
	next.leave(t, true)
}
