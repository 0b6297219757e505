package main

import (
	"sync/atomic"
	"time"
)

const (
	// pingEvery is how often a node pings a terminal, unless it waits for the
	// program to read what was typed.
	pingEvery = 15 * time.Second
	// signOfLife is how long a node may then be silent.
	signOfLife = time.Minute
	// holdLimit is how long it may be where it may wait: the API's 15 minutes, and
	// one to say so.
	holdLimit = 16 * time.Minute
)

// pulse finds out that a node is silent for longer than it can be. A node that
// waits for a program to read what was typed is silent, too; it begins to wait
// when something is typed, and so a little after its last ping at the latest.
type pulse struct {
	timer *time.Timer
	// Nanoseconds since 1970.
	seen  atomic.Int64 // the last sign of life
	typed atomic.Int64 // the last time that something was sent
}

func newPulse() *pulse {
	p := &pulse{timer: time.NewTimer(signOfLife)}
	p.seen.Store(time.Now().UnixNano())
	return p
}

// sign is a sign of life, or the beginning of a wait for one.
func (p *pulse) sign() {
	p.seen.Store(time.Now().UnixNano())
	p.timer.Reset(signOfLife)
}

// pause stops the waiting until the next sign.
func (p *pulse) pause() { p.timer.Stop() }

func (p *pulse) sent() { p.typed.Store(time.Now().UnixNano()) }

// watch calls lost when there was no sign of life for too long, unless done is
// closed before.
func (p *pulse) watch(done <-chan struct{}, lost func()) {
	for {
		select {
		case <-done:
			return
		case <-p.timer.C:
		}
		seen := p.seen.Load()
		silent := time.Duration(time.Now().UnixNano() - seen)
		if mayWait := p.typed.Load() > seen-int64(pingEvery); !mayWait || silent >= holdLimit {
			lost()
			return
		}
		p.timer.Reset(signOfLife)
	}
}
