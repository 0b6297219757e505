package soak

import "time"

// hold is from when to when a create may have held a slot.
type hold struct{ from, to time.Time }

// checkCapacity holds each "the node is full" against how many sandboxes there
// may have been at that time. That it was slow is no reason.
func (c *checker) checkCapacity() {
	holds := c.holds()
	for i := range c.history {
		o := &c.history[i]
		if o.Verb != Create || o.Code != "node_at_capacity" {
			continue
		}
		most := 0
		for _, h := range holds {
			if !h.from.After(o.Ended) && !h.to.Before(o.Began) {
				most++
			}
		}
		if most < c.node.Slots {
			c.report("the node was not full", o)
		}
	}
}

// holds bounds from outside how long each create held its slot.
func (c *checker) holds() []hold {
	made := map[string]*box{} // by mark
	for _, b := range c.boxes {
		if last := b.last(); last != nil {
			made[last.Mark] = b
		}
	}
	var all []hold
	for i := range c.history {
		o := &c.history[i]
		if o.Verb != Create || o.Code == "node_at_capacity" {
			continue
		}
		h := hold{from: o.Began, to: c.history[len(c.history)-1].Ended}
		switch b := made[o.Mark]; {
		case b != nil:
			h.to = c.gone(b, h.to)
		case o.Answer == Lost:
			h.to = c.settled(o, h.to)
		default:
			h.to = o.Ended.Add(c.node.Grace)
		}
		all = append(all, h)
	}
	return all
}

// gone is when a sandbox surely held its slot no more.
func (c *checker) gone(b *box, end time.Time) time.Time {
	for _, s := range b.seen {
		if s.State != "stopped" {
			continue
		}
		at := s.by.Ended.Add(c.node.Grace)
		if s.by.Verb == Delete {
			at = s.by.Ended // it answers when nothing is left
		}
		if at.Before(end) {
			end = at
		}
	}
	return end
}

// settled is when a create of which nobody ever heard held its slot no more: the
// next daemon that lists what runs does not know it.
func (c *checker) settled(create *Operation, end time.Time) time.Time {
	for i := range c.history {
		o := &c.history[i]
		if o.Verb == List && o.Answer == Done && o.Began.After(create.Ended) {
			return o.Ended.Add(c.node.Grace)
		}
	}
	return end
}
