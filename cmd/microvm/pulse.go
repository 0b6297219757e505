package main

import "time"

// signOfLife is how long a node may be silent: it sends a ping, or word that it
// waits for the program, every 15 s.
const signOfLife = time.Minute

// pulse finds out that a node is silent for longer than it can be.
type pulse struct{ timer *time.Timer }

func newPulse() *pulse { return &pulse{time.NewTimer(signOfLife)} }

// sign is a sign of life, or the beginning of a wait for one.
func (p *pulse) sign() { p.timer.Reset(signOfLife) }

// pause stops the waiting until the next sign.
func (p *pulse) pause() { p.timer.Stop() }

// watch calls lost when there was no sign of life for too long, unless done is
// closed before.
func (p *pulse) watch(done <-chan struct{}, lost func()) {
	select {
	case <-done:
	case <-p.timer.C:
		lost()
	}
}
