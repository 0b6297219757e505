package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/sandbox"
)

const (
	racers = 16 // goroutines that try the same thing
	rounds = 8  // times each race is run
)

// race runs do in racers goroutines at once and returns what each answered.
func race(do func(i int) error) []error {
	errs := make([]error, racers)
	start := make(chan struct{})
	var wait sync.WaitGroup
	for i := range errs {
		wait.Go(func() {
			<-start
			errs[i] = do(i)
		})
	}
	close(start)
	wait.Wait()
	return errs
}

// winner returns who got nil; it fails unless there is one and the others
// were refused as lost says.
func winner(t *testing.T, errs []error, lost func(error) bool) int {
	t.Helper()
	won := -1
	for i, err := range errs {
		switch {
		case err == nil && won < 0:
			won = i
		case err == nil:
			t.Fatalf("%d and %d both won", won, i)
		case !lost(err):
			t.Fatalf("%d: %v", i, err)
		}
	}
	if won < 0 {
		t.Fatalf("nobody won: %v", errs)
	}
	return won
}

func nameRace(t *testing.T, s Store) {
	for round := range rounds {
		name := fmt.Sprint("name", round)
		all := make([]sandbox.Sandbox, racers)
		errs := race(func(i int) error {
			all[i] = Sandbox()
			all[i].Name = name
			return s.InsertSandbox(t.Context(), all[i])
		})
		won := winner(t, errs, func(err error) bool { return fault.Is(err, fault.ResourceAlreadyExists) })
		page, err := s.Sandboxes(t.Context(), sandbox.Query{Name: name, Limit: 100})
		must(t, err)
		equal(t, page.Data, []sandbox.Sandbox{all[won]})
	}
}

// nameHandover lets a name go from one sandbox to the next while all want it: a
// holder that stopped at the wrong moment is no other error than a holder.
func nameHandover(t *testing.T, s Store) {
	errs := race(func(int) error {
		for range rounds {
			sb := Sandbox()
			sb.Name = "wanted"
			err := s.InsertSandbox(t.Context(), sb)
			if err == nil {
				err = s.UpdateSandbox(t.Context(), stop(sb, now()))
			}
			if err != nil && !fault.Is(err, fault.ResourceAlreadyExists) {
				return err
			}
		}
		return nil
	})
	must(t, errors.Join(errs...))
}

func finishRace(t *testing.T, s Store) {
	sb := insert(t, s, Sandbox())
	for range rounds {
		e := Execution(sb.ID)
		must(t, s.InsertExecution(t.Context(), e))
		ends := make([]execution.Execution, racers)
		errs := race(func(i int) error {
			ends[i] = exit(e, i)
			if i%2 == 0 {
				ends[i].Status, ends[i].Reason, ends[i].ExitCode = execution.Vanished, execution.VMDied, nil
				ends[i].StdoutBytes = int64(i)
			}
			return s.FinishExecution(t.Context(), ends[i])
		})
		won := winner(t, errs, func(err error) bool { return errors.Is(err, execution.ErrAlreadyFinished) })
		got, err := s.Execution(t.Context(), sb.ID, e.ID)
		must(t, err)
		equal(t, got, ends[won])
	}
}

// stopRace stops a sandbox from some goroutines while others say it is running.
func stopRace(t *testing.T, s Store) {
	for range rounds {
		sb := insert(t, s, Sandbox())
		stopped := stop(sb, now())
		errs := race(func(i int) error {
			next := stopped
			if i%2 == 0 {
				next = sb
				next.State = sandbox.Running
			}
			return s.UpdateSandbox(t.Context(), next)
		})
		stops := 0
		for i, err := range errs {
			if err == nil && i%2 == 1 {
				stops++
			} else if err != nil && !fault.Is(err, fault.SandboxNotRunning) {
				t.Fatal(err)
			}
		}
		got, err := s.Sandbox(t.Context(), sb.ID)
		must(t, err)
		equal(t, got, stopped)
		if stops != 1 {
			t.Fatalf("%d stops succeeded", stops)
		}
	}
}

// readersDoNotWait reads and writes at once: no call may fail because of
// another, and a reader sees a sandbox at once when its insert returned.
func readersDoNotWait(t *testing.T, s Store) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	errs := race(func(i int) error {
		for range rounds {
			sb := Sandbox()
			sb.Tags = map[string]string{"racer": fmt.Sprint(i)}
			if err := s.InsertSandbox(ctx, sb); err != nil {
				return err
			}
			if _, err := s.Sandbox(ctx, sb.ID); err != nil {
				return err
			}
			if _, err := s.Sandboxes(ctx, sandbox.Query{TagKey: "racer", TagValue: fmt.Sprint(i), Limit: 100}); err != nil {
				return err
			}
			if _, err := s.LiveSandboxes(ctx); err != nil {
				return err
			}
			sb.State = sandbox.Running
			if err := s.UpdateSandbox(ctx, sb); err != nil {
				return err
			}
		}
		return nil
	})
	must(t, errors.Join(errs...))
	live, err := s.LiveSandboxes(ctx)
	must(t, err)
	if len(live) != racers*rounds {
		t.Fatalf("%d live", len(live))
	}
}
