package soak_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/microvmd/microvm/e2e/soak"
)

// began is when the histories of these tests begin.
var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(seconds float64) time.Time { return began.Add(time.Duration(seconds * float64(time.Second))) }

var node = soak.Node{Slots: 2, Grace: time.Second, Loud: 1 << 20}

// story is a history that is in order: two sandboxes, a daemon and a VMM that
// are killed, and a program that goes on over the first kill.
type story struct {
	create, start, early, kill, listed, ended, touch, extend, other, killVMM, died, remove, gone, full soak.Operation
}

func (s *story) history() []soak.Operation {
	return []soak.Operation{
		s.create, s.start, s.early, s.kill, s.listed, s.ended, s.touch, s.extend, s.other, s.full, s.killVMM, s.died, s.remove, s.gone,
	}
}

const first, second = "sb_1", "sb_2"

func newStory() *story {
	sb := soak.Sandbox{ID: first, Mark: "1", State: "running", Boot: "cold", Created: at(1), Expires: at(901)}
	extended := sb
	extended.Expires = at(980)
	stopped := extended
	stopped.State, stopped.StopReason, stopped.Reason, stopped.Stopped = "stopped", "stopped", "deleted", at(90)
	two := soak.Sandbox{ID: second, Mark: "2", State: "running", Boot: "snapshot", Created: at(84), Expires: at(984)}
	dead := two
	dead.State, dead.StopReason, dead.Reason, dead.Stopped = "stopped", "failed", "vm_died", at(87)

	p := soak.Program{Seed: "p", Lines: 6, Pace: time.Second, Code: 3, Timeout: time.Minute}
	out, err := p.Text(0, "7", "boot"), p.Text(1, "7", "boot")
	run := soak.Execution{ID: "exe_1", Sandbox: first, Seed: "p", Status: "running", Created: at(2)}
	part := run
	part.HasOutput, part.Bytes = true, [2]int64{11, 0}
	part.Output = [2]soak.Tail{{Bytes: out[:11]}, {}}
	exited := run
	exited.Status, exited.ExitCode, exited.HasOutput, exited.Finished = "exited", &p.Code, true, at(10)
	exited.Bytes = [2]int64{int64(len(out)), int64(len(err))}
	exited.Output = [2]soak.Tail{{Bytes: out}, {Bytes: err}}

	number := 0
	done := func(verb soak.Verb, from, to float64) soak.Operation {
		number++
		return soak.Operation{Number: number, Verb: verb, Began: at(from), Ended: at(to), Answer: soak.Done, Sandbox: first}
	}
	s := &story{
		create: done(soak.Create, 1, 1.5), start: done(soak.Start, 2, 2), early: done(soak.Look, 3, 4), kill: done(soak.KillDaemon, 5, 6),
		listed: done(soak.List, 7, 7), ended: done(soak.Look, 11, 11), touch: done(soak.Touch, 70, 70), extend: done(soak.Extend, 80, 80),
		other: done(soak.Create, 84, 85), full: done(soak.Create, 85.2, 85.3), killVMM: done(soak.KillVMM, 86, 86),
		died: done(soak.Get, 88, 88), remove: done(soak.Delete, 89, 91), gone: done(soak.Get, 95, 95),
	}
	s.create.Sandbox, s.create.Mark, s.create.TTL, s.create.Sandboxes = "", "1", 15*time.Minute, []soak.Sandbox{sb}
	s.start.Program, s.start.Executions = p, []soak.Execution{run}
	s.early.Execution, s.early.Executions = run.ID, []soak.Execution{part}
	s.kill.Sandbox, s.listed.Sandbox, s.listed.Sandboxes = "", "", []soak.Sandbox{sb}
	s.ended.Execution, s.ended.Executions = run.ID, []soak.Execution{exited}
	s.touch.Sandboxes = []soak.Sandbox{sb}
	s.extend.TTL, s.extend.Sandboxes = 15*time.Minute, []soak.Sandbox{extended}
	s.other.Sandbox, s.other.Mark, s.other.TTL, s.other.Idle, s.other.Sandboxes = "", "2", 15*time.Minute, 5*time.Second, []soak.Sandbox{two}
	s.full.Sandbox, s.full.Mark, s.full.Answer, s.full.Code = "", "3", soak.Refused, "node_at_capacity"
	s.killVMM.Sandbox, s.died.Sandbox, s.died.Sandboxes = second, second, []soak.Sandbox{dead}
	s.remove.Sandboxes, s.gone.Sandboxes = []soak.Sandbox{stopped}, []soak.Sandbox{stopped}
	return s
}

func TestAHistoryInOrderPasses(t *testing.T) {
	if wrong := soak.Check(newStory().history(), node); len(wrong) > 0 {
		t.Error(strings.Join(wrong, "\n"))
	}
}

// TestEachLieIsSeen changes one answer of a history that is in order.
func TestEachLieIsSeen(t *testing.T) {
	vanish := func(s *story, reason string) {
		e := &s.ended.Executions[0]
		e.Status, e.Reason, e.ExitCode = "vanished", reason, nil
	}
	end := func(o *soak.Operation, stop, reason string, when time.Time) {
		sb := &o.Sandboxes[0]
		sb.State, sb.StopReason, sb.Reason, sb.Stopped = "stopped", stop, reason, when
	}
	refuse := func(o *soak.Operation, code string) {
		o.Answer, o.Code, o.Sandboxes, o.Executions = soak.Refused, code, nil, nil
	}
	for _, c := range []struct {
		name string
		lie  func(*story)
		want string
	}{
		{"one that was acknowledged is not found", func(s *story) { refuse(&s.gone, "sandbox_not_found") }, "nothing explains"},
		{"one that runs is refused as not running", func(s *story) { refuse(&s.touch, "sandbox_not_running") }, "refused as not running"},
		{"an execution that was acknowledged is not found", func(s *story) { refuse(&s.ended, "execution_not_found") }, "nothing explains"},
		{"an error of the daemon's", func(s *story) { refuse(&s.touch, "internal_error") }, "nothing explains"},
		{"no answer without a kill", func(s *story) { refuse(&s.touch, "no_answer") }, "nothing explains"},
		{"a stopped one runs again", func(s *story) { s.gone.Sandboxes[0] = s.extend.Sandboxes[0] }, "state went back"},
		{"a running one starts again", func(s *story) { s.touch.Sandboxes[0].State = "starting" }, "state went back"},
		{"no such state", func(s *story) { s.touch.Sandboxes[0].State = "tired" }, "no such state"},
		{"a stopped one has another reason", func(s *story) { end(&s.gone, "expired", "ttl", at(981)) }, "ending changed"},
		{"a stopped one stopped at another time", func(s *story) { s.gone.Sandboxes[0].Stopped = at(90.5) }, "ending changed"},
		{"one runs and has a reason", func(s *story) { s.touch.Sandboxes[0].Reason = "ttl" }, "runs and has an ending"},
		{"stop reason and reason differ", func(s *story) { s.gone.Sandboxes[0].StopReason = "idle" }, "do not go together"},
		{"it stopped in the future", func(s *story) { s.gone.Sandboxes[0].Stopped = at(96) }, "at a time that cannot be"},
		{"it came up otherwise", func(s *story) { s.touch.Sandboxes[0].Boot = "snapshot" }, "what never changes"},
		{"it was created at another time", func(s *story) { s.touch.Sandboxes[0].Created = at(1.1) }, "what never changes"},
		{"nobody deleted it", func(s *story) { s.remove.Verb = soak.Get }, "nobody deleted it"},
		{"a delete did not delete", func(s *story) { s.remove.Sandboxes = s.extend.Sandboxes }, "deleted and is there"},
		{"its VMM was not killed", func(s *story) { s.killVMM.Sandbox = first }, "nobody killed its VMM"},
		{"its VMM was killed and it runs", func(s *story) { s.died.Sandboxes, s.died.Began = s.other.Sandboxes, at(87.5) }, "killed and it runs"},
		{"its TTL was not over", func(s *story) { end(&s.died, "expired", "ttl", at(87)) }, "TTL was not over"},
		{"its TTL was over", func(s *story) { s.gone.Sandboxes, s.gone.Began, s.gone.Ended = s.extend.Sandboxes, at(990), at(990) }, "its TTL was over"},
		{"it was not there for its idle time", func(s *story) { end(&s.died, "idle", "idle", at(87)) }, "not been there for so long"},
		{"it never idles", func(s *story) { end(&s.gone, "idle", "idle", at(90)) }, "not been there for so long"},
		{"it was used and idled", func(s *story) {
			s.create.Idle = 30 * time.Second
			end(&s.remove, "idle", "idle", at(90))
			end(&s.gone, "idle", "idle", at(90))
		}, "it was used"},
		{"it ran a program and idled", func(s *story) {
			s.touch.Verb = soak.Get
			s.create.Idle = 81 * time.Second
			end(&s.remove, "idle", "idle", at(90))
			end(&s.gone, "idle", "idle", at(90))
		}, "an execution ran"},
		{"a running one did not survive the daemon", func(s *story) { end(&s.gone, "failed", "host_restarted", at(6)) }, "it ran before"},
		{"one never ran, and no daemon was killed", func(s *story) {
			refuse(&s.other, "")
			s.other.Answer = soak.Lost
			end(&s.died, "failed", "host_restarted", at(87))
		}, "no daemon was killed"},
		{"an agent died by itself", func(s *story) { end(&s.died, "failed", "agent_died", at(87)) }, "nothing of that kind"},
		{"the end of the TTL goes back after an extend", func(s *story) { s.remove.Sandboxes[0].Expires = at(901) }, "went back"},
		{"an extend does not extend", func(s *story) { s.extend.Sandboxes[0].Expires = at(901) }, "did not extend"},
		{"an id is given twice", func(s *story) { s.other.Sandboxes[0].ID = first }, "given twice"},
		{"one create makes two", func(s *story) { s.listed.Sandboxes[0].ID = "sb_9" }, "one create made two"},
		{"nobody asked for it", func(s *story) { s.died.Sandboxes[0].Mark = "x" }, "nobody asked for"},
		{"a refused create makes one", func(s *story) { s.died.Sandboxes[0].Mark = "3" }, "refused create made"},
		{"the node was not full", func(s *story) { s.full.Began, s.full.Ended = at(50), at(50) }, "not full"},
		{"the node was not full any more", func(s *story) { s.full.Began, s.full.Ended = at(92), at(92) }, "not full"},

		{"an exit code was invented", func(s *story) { s.ended.Executions[0].ExitCode = new(int) }, "as its program does not"},
		{"no exit code", func(s *story) { s.ended.Executions[0].ExitCode = nil }, "as its program does not"},
		{"an exit code of one that vanished", func(s *story) {
			code := s.ended.Executions[0].ExitCode
			vanish(s, "deleted")
			s.ended.Executions[0].ExitCode = code
		}, "invented"},
		{"a signal that nobody sent", func(s *story) { s.ended.Executions[0].Signal = "SIGKILL" }, "as its program does not"},
		{"it exited before it can have", func(s *story) { s.ended.Executions[0].Finished = at(7) }, "before its program can"},
		{"it timed out before its time", func(s *story) {
			e := &s.ended.Executions[0]
			e.Status, e.Reason, e.ExitCode = "timed_out", "timeout", nil
		}, "its time was not over"},
		{"it runs past its timeout", func(s *story) { s.ended.Executions, s.ended.Began = s.early.Executions, at(70) }, "its timeout was over"},
		{"it runs in what has stopped", func(s *story) { s.ended.Executions, s.ended.Ended = s.early.Executions, at(93) }, "in a sandbox that has stopped"},
		{"it failed to start", func(s *story) {
			e := &s.ended.Executions[0]
			e.Status, e.Reason, e.ExitCode = "failed", "agent_unreachable", nil
		}, "without a reason"},
		{"no such status", func(s *story) { s.ended.Executions[0].Status = "lost" }, "no such status"},
		{"it vanished for another reason", func(s *story) { vanish(s, "vm_died") }, "another reason than its sandbox"},
		{"it vanished from what runs", func(s *story) { vanish(s, "deleted"); s.remove.Sandboxes, s.gone.Sandboxes = nil, nil }, "from a sandbox that runs"},
		{"it idled", func(s *story) { vanish(s, "idle") }, "is a use"},
		{"a line is lost", func(s *story) {
			e := &s.ended.Executions[0]
			e.Output[0].Bytes = slices.Delete(slices.Clone(e.Output[0].Bytes), 11, 22)
		}, "stdout is not what it wrote"},
		{"a line comes twice", func(s *story) {
			e := &s.ended.Executions[0]
			e.Output[1].Bytes = append(slices.Clone(e.Output[1].Bytes), e.Output[1].Bytes[11:]...)
		}, "stderr is not what it wrote"},
		{"the pid changed", func(s *story) {
			e := &s.ended.Executions[0]
			e.Output[0].Bytes = []byte(strings.Replace(string(e.Output[0].Bytes), "p 3 7", "p 3 8", 1))
		}, "stdout is not what it wrote"},
		{"the front fell out", func(s *story) {
			e := &s.ended.Executions[0]
			e.Output[0] = soak.Tail{Offset: 11, Bytes: e.Output[0].Bytes[11:]}
		}, "output was lost"},
		{"the end is not kept", func(s *story) {
			e := &s.ended.Executions[0]
			e.Output[0].Bytes = e.Output[0].Bytes[:22]
		}, "does not keep the end"},
		{"it exited in the midst of its output", func(s *story) {
			e := &s.ended.Executions[0]
			e.Output[0].Bytes, e.Bytes[0] = e.Output[0].Bytes[:22], 22
		}, "did not write all"},
		{"output that was seen is gone", func(s *story) {
			vanish(s, "deleted")
			e := &s.ended.Executions[0]
			e.Output, e.Bytes = [2]soak.Tail{}, [2]int64{}
		}, "output that was seen is gone"},
		{"one that ended changes", func(s *story) {
			again := s.ended
			again.Began, again.Ended = at(12), at(12)
			again.Executions = slices.Clone(again.Executions)
			again.Executions[0].Finished = at(10.5)
			s.touch = again
		}, "that has ended changed"},
		{"an execution of another sandbox", func(s *story) { s.ended.Executions[0].Sandbox = second }, "another's"},
		{"an execution that nobody asked for", func(s *story) {
			s.ended.Executions[0].ID, s.ended.Executions[0].Seed = "exe_2", "x"
		}, "nobody asked for"},
		{"it was created before it was asked for", func(s *story) {
			for _, o := range []*soak.Operation{&s.start, &s.early, &s.ended} {
				o.Executions[0].Created = at(1.9)
			}
		}, "created at a time that cannot be"},
		{"two kernels", func(s *story) {
			another := s.start
			another.Program.Seed = "q"
			another.Executions = slices.Clone(another.Executions)
			e := &another.Executions[0]
			*e = s.early.Executions[0]
			e.ID, e.Seed = "exe_2", "q"
			e.Output[0].Bytes = another.Program.Text(0, "9", "boot2")[:12]
			e.Bytes[0] = 12
			s.touch = another
		}, "two boot_ids"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStory()
			c.lie(s)
			for _, wrong := range soak.Check(s.history(), node) {
				if strings.Contains(wrong, c.want) {
					return
				}
			}
			t.Errorf("not seen: %q in %q", c.want, soak.Check(s.history(), node))
		})
	}
}
