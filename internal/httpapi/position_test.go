package httpapi

import (
	"testing"

	"github.com/microvmd/microvm/internal/execution"
)

// FuzzPosition: what is taken for the id of an event is the one id of its
// position, and a position survives the way to a client and back.
func FuzzPosition(f *testing.F) {
	for _, id := range []string{"0.0", "1024.7", "9223372036854775807.9223372036854775807", "9223372036854775808.0", "-1.0", "+1.0", "01.0", "1.", ".1", "1.1.1", "1,1", " 1.1", "1e3.0", "", "\x00.\xff", "１.１"} {
		f.Add(id, int64(0), int64(len(id)))
	}
	f.Fuzz(func(t *testing.T, id string, stdout, stderr int64) {
		if p, ok := parsePosition(id); ok && (formatPosition(p) != id || p.Stdout < 0 || p.Stderr < 0) {
			t.Fatalf("%q was taken for %+v, whose id is %q", id, p, formatPosition(p))
		}
		want := execution.Position{Stdout: max(stdout, 0), Stderr: max(stderr, 0)}
		if got, ok := parsePosition(formatPosition(want)); !ok || got != want {
			t.Fatalf("%+v came back as %+v", want, got)
		}
	})
}

func TestResumeAt(t *testing.T) {
	id := func(text string) *string { return &text }
	for name, test := range map[string]struct {
		after, last *string
		want        string // "": refused
	}{
		"neither":              {nil, nil, "0.0"},
		"after":                {id("3.4"), nil, "3.4"},
		"last":                 {nil, id("5.6"), "5.6"},
		"alike":                {id("3.4"), id("3.4"), "3.4"},
		"connects again":       {id("3.4"), id("3.9"), "3.9"},
		"contradict in stdout": {id("3.4"), id("2.9"), ""},
		"contradict in stderr": {id("3.4"), id("9.3"), ""},
		"bad after, good last": {id("x"), id("9.3"), ""},
	} {
		got, err := resumeAt(test.after, test.last)
		if (err != nil) != (test.want == "") || err == nil && formatPosition(got) != test.want {
			t.Errorf("%s: %+v %v, want %q", name, got, err, test.want)
		}
	}
}
