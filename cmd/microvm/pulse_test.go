package main

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestPulse(t *testing.T) {
	for name, test := range map[string]struct {
		do   func(*pulse)
		lost time.Duration // after which it is
	}{
		"silent from the start": {func(*pulse) {}, signOfLife},
		"silent after some pings": {func(p *pulse) {
			for range 100 {
				time.Sleep(15 * time.Second) // the bubble's clock
				p.sign()
			}
		}, 1500*time.Second + signOfLife},
		"a terminal that is held up": {func(p *pulse) {
			p.pause()
			time.Sleep(time.Hour)
			p.sign()
		}, time.Hour + signOfLife},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				p := newPulse()
				done := make(chan struct{})
				lost := make(chan time.Duration, 1)
				go p.watch(done, func() { lost <- time.Since(began) })
				test.do(p)
				if got := <-lost; got != test.lost {
					t.Errorf("lost after %s, want %s", got, test.lost)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		p := newPulse()
		done := make(chan struct{})
		go p.watch(done, func() { t.Error("it is lost") })
		close(done)
		time.Sleep(time.Hour)
	})
}
