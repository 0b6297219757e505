package soak

import (
	"bytes"
	"fmt"
	"reflect"
	"time"
)

// checkProgram holds all that was said of one execution against each other and
// against what its program does.
func (c *checker) checkProgram(p *program) {
	if p.asked == nil {
		return // reported
	}
	text := [2][]byte{}
	if p.me != (who{}) {
		text = [2][]byte{p.Text(0, p.me.pid, p.me.boot), p.Text(1, p.me.pid, p.me.boot)}
	}
	for i, r := range p.seen {
		c.checkRan(p, r)
		if r.HasOutput {
			c.checkOutput(p, r, text)
		}
		for _, earlier := range p.seen[:i] {
			if !earlier.by.Ended.After(r.by.Began) {
				c.checkFollows(earlier, r)
			}
		}
	}
}

// checkRan holds one answer against the program and its sandbox.
func (c *checker) checkRan(p *program, r ran) {
	if !within(r.Created, p.asked.Began, p.asked.Ended) {
		c.report("it was created at a time that cannot be", p.asked, r.by)
	}
	if r.Status == "running" {
		c.checkRunning(p, r)
		return
	}
	lasted := r.Finished.Sub(r.Created)
	if lasted < 0 || r.Finished.After(r.by.Ended.Add(tick)) {
		c.report("it ended at a time that cannot be", r.by)
	}
	if r.Status != "exited" && r.ExitCode != nil {
		c.report("an exit code was invented", r.by)
	}
	switch r.Status {
	case "exited":
		ok := r.ExitCode != nil && *r.ExitCode == p.Code && r.Signal == "" && !r.OOM && r.Reason == "" && !p.Missing
		if !ok {
			c.report("it exited as its program does not", r.by)
		}
		if lasted+tick < p.Lasts() {
			c.report("it exited before its program can have", r.by)
		}
	case "timed_out":
		if r.Reason != "timeout" || lasted+tick < p.Timeout || r.Signal != "" && r.Signal != "SIGKILL" {
			c.report("it timed out, and its time was not over", r.by)
		}
	case "failed":
		missing := r.Reason == "command_not_found" && p.Missing
		never := r.Reason == "agent_unreachable" && p.asked.Answer == Lost // the daemon died before it asked the agent
		if !missing && !never || r.Bytes != [2]int64{} {
			c.report("it failed to start without a reason", r.by)
		}
	case "vanished":
		c.checkVanished(p, r)
	default:
		c.report("no such status", r.by)
	}
}

func (c *checker) checkRunning(p *program, r ran) {
	switch last := c.boxes[p.sandbox].last(); {
	case r.Reason != "" || r.ExitCode != nil || r.Signal != "" || !r.Finished.IsZero():
		c.report("it runs and has an ending", r.by)
	case r.by.Began.After(r.Created.Add(p.Timeout + c.node.Grace)):
		c.report("its timeout was over", r.by)
	case last != nil && last.State == "stopped" && r.by.Ended.After(last.Stopped.Add(c.node.Grace)):
		c.report("it runs in a sandbox that has stopped", last.by, r.by)
	}
}

// checkVanished: the reason is its sandbox's.
func (c *checker) checkVanished(p *program, r ran) {
	last := c.boxes[p.sandbox].last()
	switch {
	case r.Signal != "" || r.OOM:
		c.report("it vanished and has an ending of its own", r.by)
	case r.Reason == "idle":
		c.report("an execution is a use, and its sandbox idled", r.by)
	case last == nil || last.State != "stopped":
		c.report("it vanished from a sandbox that runs", r.by)
	case last.Reason != r.Reason:
		c.report("it vanished for another reason than its sandbox", last.by, r.by)
	}
}

// checkOutput holds what is kept against what the program writes.
func (c *checker) checkOutput(p *program, r ran, text [2][]byte) {
	for i, tail := range r.Output {
		stream := [2]string{"stdout", "stderr"}[i]
		loud := int64(len(text[i])) > c.node.Loud
		switch {
		case tail.Offset < 0 || tail.end() > int64(len(text[i])) || !bytes.Equal(tail.Bytes, text[i][tail.Offset:tail.end()]):
			c.report(fmt.Sprintf("its %s is not what it wrote: %s", stream, excerpt(tail, text[i])), r.by)
		case tail.Offset > 0 && !loud:
			c.report("output was lost: "+stream, r.by)
		case r.Status != "running" && tail.end() != r.Bytes[i]:
			c.report("it does not keep the end of its "+stream, r.by)
		case r.Status == "exited" && r.Bytes[i] != int64(len(text[i])):
			c.report("it exited and did not write all of its "+stream, r.by)
		}
	}
}

// excerpt shows where a tail leaves the text.
func excerpt(t Tail, text []byte) string {
	for i := range t.Bytes {
		if at := t.Offset + int64(i); at >= int64(len(text)) || at < 0 || text[at] != t.Bytes[i] {
			return fmt.Sprintf("from byte %d on: %q", at, t.Bytes[max(0, i-40):min(len(t.Bytes), i+80)])
		}
	}
	return "beyond its end"
}

// checkFollows holds two answers against each other of which the first was there
// before the second was asked for.
func (c *checker) checkFollows(first, then ran) {
	if first.Status != "running" {
		a, b := first.Execution, then.Execution
		if !a.HasOutput || !b.HasOutput {
			a.Output, b.Output = [2]Tail{}, [2]Tail{}
			a.HasOutput, b.HasOutput = false, false
		}
		if !reflect.DeepEqual(a, b) {
			c.report("an execution that has ended changed", first.by, then.by)
		}
		return
	}
	for i := range first.Bytes {
		seen, kept := max(first.Bytes[i], first.Output[i].end()), then.Bytes[i]
		if then.HasOutput {
			kept = max(kept, then.Output[i].end())
		}
		if kept < seen {
			c.report("output that was seen is gone", first.by, then.by)
		}
	}
	if !first.Created.Equal(then.Created) {
		c.report("what never changes changed", first.by, then.by)
	}
}

// checkBoot: all programs of a sandbox ran under one kernel.
func (c *checker) checkBoot(b *box) {
	var first *program
	for _, p := range b.ran {
		switch {
		case p.me == (who{}):
		case first == nil:
			first = p
		case p.me.boot != first.me.boot:
			c.report("a sandbox has two boot_ids", first.seen[0].by, p.seen[0].by)
		}
	}
}

// within reports whether a time lies between two, give or take a tick.
func within(t, from, to time.Time) bool {
	return !t.Before(from.Add(-tick)) && !t.After(to.Add(tick))
}
