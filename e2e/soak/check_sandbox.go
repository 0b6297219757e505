package soak

import (
	"fmt"
	"time"
)

var rank = map[string]int{"starting": 1, "running": 2, "stopped": 3}

// stopReasons says which stop reason goes with each reason.
var stopReasons = map[string]string{
	"deleted": "stopped", "ttl": "expired", "idle": "idle", "vm_died": "failed", "host_restarted": "failed",
}

// checkBox holds all that was said of one sandbox against each other.
func (c *checker) checkBox(b *box) {
	c.checkBoot(b)
	for i, s := range b.seen {
		c.checkSeen(b, s)
		for _, earlier := range b.seen[:i] {
			if !earlier.by.Ended.After(s.by.Began) {
				c.checkOrder(earlier, s)
			}
		}
	}
}

// checkSeen holds one answer against what was done.
func (c *checker) checkSeen(b *box, s seen) {
	switch {
	case s.State == "stopped":
		c.checkEnd(b, s)
	case rank[s.State] == 0:
		c.report("no such state", s.by)
	case !s.Stopped.IsZero() || s.StopReason != "" || s.Reason != "":
		c.report("it runs and has an ending", s.by)
	case s.by.Began.After(s.Expires.Add(clockSlack + c.node.Grace)):
		c.report("its TTL was over", s.by)
	}
	switch s.by.Verb {
	case Create, Extend, Touch, List:
		if s.State != "running" && s.by.Verb != Touch { // which looks after it has touched
			c.report("an answer that says it runs, and it does not", s.by)
		}
	case Delete:
		if s.State != "stopped" {
			c.report("it was deleted and is there", s.by)
		}
	default:
	}
	if s.by.Verb == Extend && s.Expires.Add(clockSlack).Before(s.by.Began.Add(s.by.TTL)) {
		c.report("an extend did not extend", s.by)
	}
	for _, o := range b.done {
		if o.Verb == KillVMM && o.Answer == Done && s.State != "stopped" && s.by.Began.After(o.Ended.Add(c.node.Grace)) {
			c.report("its VMM was killed and it runs", o, s.by)
		}
	}
}

// checkOrder holds two answers against each other of which the first was there
// before the second was asked for.
func (c *checker) checkOrder(first, then seen) {
	switch {
	case rank[then.State] < rank[first.State]:
		c.report("its state went back", first.by, then.by)
	case first.State == "stopped" && first.Sandbox != then.Sandbox:
		c.report("its ending changed", first.by, then.by)
	case first.Mark != then.Mark || !first.Created.Equal(then.Created) || first.Boot != "" && first.Boot != then.Boot:
		c.report("what never changes changed", first.by, then.by)
	case then.Expires.Add(clockSlack).Before(first.Expires):
		c.report("the end of its TTL went back", first.by, then.by)
	}
}

// checkEnd asks whether something in the history explains an ending.
func (c *checker) checkEnd(b *box, s seen) {
	if s.Stopped.Before(s.Created) || s.Stopped.After(s.by.Ended.Add(tick)) {
		c.report("it stopped at a time that cannot be", s.by)
	}
	if stopReasons[s.Reason] != s.StopReason {
		c.report("stop reason and reason do not go together", s.by)
	}
	if why := c.unexplained(b, s); why != "" {
		c.report(fmt.Sprintf("%s stopped as %s, %s", b.id, s.Reason, why), s.by)
	}
}

// unexplained says what speaks against an ending; "" is nothing.
func (c *checker) unexplained(b *box, s seen) string {
	before := func(verb Verb) bool {
		for _, o := range b.done {
			if o.Verb == verb && !o.Began.After(s.Stopped.Add(tick)) {
				return true
			}
		}
		return false
	}
	switch s.Reason {
	case "deleted":
		if !before(Delete) {
			return "and nobody deleted it"
		}
	case "vm_died":
		if !before(KillVMM) {
			return "and nobody killed its VMM"
		}
	case "ttl":
		if s.Stopped.Add(clockSlack).Before(s.Expires) {
			return "and its TTL was not over"
		}
	case "idle":
		return c.used(b, s)
	case "host_restarted":
		return c.restarted(b, s)
	default:
		return "and nothing of that kind was done"
	}
	return ""
}

// used says what speaks against a sandbox having idled.
func (c *checker) used(b *box, s seen) string {
	var idle time.Duration
	if create := c.creates[s.Mark]; create != nil {
		idle = create.Idle
	}
	since := s.Stopped.Add(tick - idle)
	if idle == 0 || s.Created.After(since) {
		return "and it had not been there for so long"
	}
	for _, o := range b.done {
		if o.Answer == Done && (o.Verb == Touch || o.Verb == Start) && o.Began.After(since) && o.Ended.Before(s.Stopped) {
			return "and it was used: " + o.String()
		}
	}
	for _, p := range b.ran {
		last := p.seen[len(p.seen)-1]
		if last.Created.Before(s.Stopped.Add(-tick)) && (last.Finished.IsZero() || last.Finished.After(since)) {
			return "and an execution ran: " + last.by.String()
		}
	}
	return ""
}

// restarted says what speaks against a sandbox having been in the making when
// the daemon was killed. One that ran goes on.
func (c *checker) restarted(b *box, s seen) string {
	for _, other := range b.seen {
		if other.State == "running" {
			return "and it ran before: " + other.by.String()
		}
	}
	for i := range c.history {
		o := &c.history[i]
		if o.Verb == KillDaemon && !o.Began.After(s.Stopped) && o.Ended.Add(c.node.Grace).After(s.Created) {
			return ""
		}
	}
	return "and no daemon was killed"
}
