package soak_test

import (
	"context"
	"errors"
	"sync"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/sandbox"
	"github.com/microvmd/microvm/internal/sqlstore"
	"github.com/microvmd/microvm/internal/testkit"
)

// mortalStore is the store as one life of the daemon sees it: with its end, no
// write of it happens any more. The end can come with a write: before it, or
// when it was committed and nobody was told.
type mortalStore struct {
	*sqlstore.Store // reads; their answers go nowhere after the end
	view            *testkit.View

	acting sync.RWMutex // held for reading while a write is under way

	mu     sync.Mutex
	count  int            // guarded by mu; writes so far
	at     int            // guarded by mu; the one that ends the life; 0 is none
	moment testkit.Moment // guarded by mu
	died   string         // guarded by mu; the one that did
}

var errDead = errors.New("the daemon was killed")

// killAt lets the nth write from now on end the life.
func (s *mortalStore) killAt(n int, moment testkit.Moment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at, s.moment = s.count+n, moment
}

// struck tells the write that ended the life, if it was one.
func (s *mortalStore) struck() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.died
}

// fence waits until no write is under way.
func (s *mortalStore) fence() {
	s.acting.Lock()
	defer s.acting.Unlock()
}

func (s *mortalStore) write(name string, do func() error) error {
	s.acting.RLock()
	defer s.acting.RUnlock()
	select {
	case <-s.view.Dead():
		return errDead
	default:
	}
	s.mu.Lock()
	s.count++
	last, moment := s.count == s.at, s.moment
	if last {
		s.died = name
	}
	s.mu.Unlock()
	if last && moment == testkit.Before {
		s.view.Kill()
		return errDead
	}
	err := do()
	if last {
		s.view.Kill()
		return errDead
	}
	return err
}

func (s *mortalStore) InsertSandbox(ctx context.Context, sb sandbox.Sandbox) error {
	return s.write("insert sandbox", func() error { return s.Store.InsertSandbox(ctx, sb) })
}

func (s *mortalStore) UpdateSandbox(ctx context.Context, sb sandbox.Sandbox) error {
	return s.write("update sandbox to "+string(sb.State), func() error { return s.Store.UpdateSandbox(ctx, sb) })
}

func (s *mortalStore) InsertExecution(ctx context.Context, e execution.Execution) error {
	return s.write("insert execution", func() error { return s.Store.InsertExecution(ctx, e) })
}

func (s *mortalStore) FinishExecution(ctx context.Context, e execution.Execution) error {
	return s.write("finish execution", func() error { return s.Store.FinishExecution(ctx, e) })
}
