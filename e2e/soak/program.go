package soak

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Program is what an execution runs. Its whole output follows from it, but for
// the pid and the boot_id, which are in every line and must not change: so a
// line that is lost, doubled or another program's is seen.
type Program struct {
	Seed    string // unique in a history
	Lines   int    // that it writes on stdout; each third also goes to stderr
	Pace    time.Duration
	Code    int // that it exits with
	Timeout time.Duration
	Missing bool // no such program: it never starts
}

// script counts. $1 is the seed, $2 the lines, $3 the pace in seconds, $4 the code.
const script = `i=0
while [ $i -lt $2 ]; do
  read -r boot </proc/sys/kernel/random/boot_id
  echo "$1 $i $$ $boot"
  [ $((i % 3)) != 0 ] || echo "$1 $i $$ $boot" >&2
  i=$((i + 1))
  [ $3 = 0.000 ] || sleep $3
done
exit $4`

// Command is how a guest runs it.
func (p Program) Command() (cmd string, args []string) {
	if p.Missing {
		return "no-such-program", []string{p.Seed}
	}
	return "sh", []string{"-c", script, "soak", p.Seed, strconv.Itoa(p.Lines), fmt.Sprintf("%.3f", p.Pace.Seconds()), strconv.Itoa(p.Code)}
}

// SeedOf finds a program's seed in the arguments of its command.
func SeedOf(args []string) string {
	switch {
	case len(args) == 1:
		return args[0]
	case len(args) == 7:
		return args[3]
	}
	return ""
}

// ProgramOf is the inverse of Command, but for the timeout.
func ProgramOf(cmd string, args []string) (Program, error) {
	if cmd != "sh" {
		return Program{Missing: true}, nil
	}
	if len(args) != 7 || args[1] != script {
		return Program{}, fmt.Errorf("%q is no program of the soak", args)
	}
	p := Program{Seed: args[3]}
	var pace float64
	_, err := fmt.Sscan(strings.Join(args[4:], " "), &p.Lines, &pace, &p.Code)
	p.Pace = time.Duration(pace * float64(time.Second))
	return p, err
}

// who is what a program's lines end with.
type who struct{ pid, boot string }

// line is the ith line.
func (p Program) line(i int, w who) string {
	return p.Seed + " " + strconv.Itoa(i) + " " + w.pid + " " + w.boot + "\n"
}

// Text is all that it writes to stdout (0) or stderr (1).
func (p Program) Text(stream int, pid, boot string) []byte {
	var text []byte
	step := [2]int{1, 3}[stream]
	for i := 0; i < p.Lines; i += step {
		text = append(text, p.line(i, who{pid, boot})...)
	}
	return text
}

// Lasts is the least time that it takes.
func (p Program) Lasts() time.Duration { return time.Duration(p.Lines) * p.Pace }

// whoOf reads pid and boot_id off the first whole line of a kept output; without
// one they are empty.
func (p Program) whoOf(t Tail) who {
	text := string(t.Bytes)
	if t.Offset > 0 { // it may begin in the midst of a line
		_, text, _ = strings.Cut(text, "\n")
	}
	line, _, whole := strings.Cut(text, "\n")
	if fields := strings.Fields(line); whole && len(fields) == 4 {
		return who{fields[2], fields[3]}
	}
	return who{}
}
