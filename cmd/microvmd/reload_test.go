package main

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/microvmd/microvm/internal/daemon"
)

// reloadTest is a reloader on a file that tests write.
type reloadTest struct {
	*reloader
	t       *testing.T
	path    string
	log     bytes.Buffer
	applied []daemon.Config
	refusal error
}

func newReloadTest(t *testing.T, text string, args ...string) *reloadTest {
	t.Helper()
	r := &reloadTest{t: t, path: configuration(t, text)}
	cmd := command()
	if err := cmd.ParseFlags(append(args, "--config", r.path)); err != nil {
		t.Fatal(err)
	}
	from := newSources(cmd.Flags())
	now, err := from.load()
	if err != nil {
		t.Fatal(err)
	}
	level := new(slog.LevelVar)
	level.Set(now.level)
	r.reloader = &reloader{from: from, log: slog.New(slog.NewTextHandler(&r.log, &slog.HandlerOptions{Level: level})), level: level, now: now}
	return r
}

// hangup reloads another text and returns what is logged.
func (r *reloadTest) hangup(text string) string {
	r.t.Helper()
	if err := os.WriteFile(r.path, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	r.log.Reset()
	r.reload(func(c daemon.Config) error { r.applied = append(r.applied, c); return r.refusal })
	return r.log.String()
}

func (r *reloadTest) says(log string, wants ...string) {
	r.t.Helper()
	for _, want := range wants {
		if !strings.Contains(log, want) {
			r.t.Errorf("no %q in %s", want, log)
		}
	}
}

func TestReload(t *testing.T) {
	r := newReloadTest(t, "slots: 4", "--vcpus", "16")
	r.says(r.hangup("slots: 6\ndrain: true\nlog-level: error\nvcpus: 99"), "configuration reloaded", "changes=3",
		`changed.slots="4 -> 6"`, `changed.drain="false -> true"`, `changed.log-level="info -> error"`, "override the file", "settings=vcpus")
	if len(r.applied) != 1 || r.applied[0].Limits.Slots != 6 || !r.applied[0].Drain || r.applied[0].Limits.VCPUs != 16 || r.level.Level() != slog.LevelError {
		t.Errorf("applied %+v, level %s", r.applied, r.level)
	}
	r.says(r.hangup("slots: 6\nlog-level: debug"), "changes=2", `changed.drain="true -> false"`, `changed.log-level="error -> debug"`)
	if r.level.Level() != slog.LevelDebug {
		t.Errorf("level %s", r.level)
	}
	r.says(r.hangup("slots: 6\nlog-level: debug"), "configuration reloaded", "changes=0")
}

// TestReloadRefuses: a fault anywhere changes nothing, and the next good file is
// compared with what is in force.
func TestReloadRefuses(t *testing.T) {
	r := newReloadTest(t, "slots: 4")
	r.says(r.hangup("slots: 6\nlog-level: debug\nslot: 5"), "nothing is changed", ":3:1: slot is no setting")
	r.says(r.hangup("slots: 6\nlog-level: loud"), "nothing is changed", "log-level is")
	r.says(r.hangup("slots: 6\nlisten: 127.0.0.1:1\ninstance: other\nlog-level: debug"), "nothing is changed", "instance, listen: changes only with a restart")
	log := r.hangup("slots: 6\ndatabase: postgres://db.example/microvm")
	r.says(log, "database: changes only")
	if strings.Contains(log, "db.example") {
		t.Errorf("the log shows the database: %s", log)
	}
	if err := os.Remove(r.path); err != nil {
		t.Fatal(err)
	}
	r.reload(func(daemon.Config) error { t.Error("applied nothing"); return nil })
	r.says(r.log.String(), "nothing is changed", "no such file")
	if len(r.applied) != 0 {
		t.Errorf("applied %+v", r.applied)
	}
	r.refusal = errors.New("vcpus is 0 and must be at least 1")
	r.says(r.hangup("vcpus: 0\nlog-level: debug"), "nothing is changed", "vcpus is 0")
	if r.now.Limits.Slots != 4 || r.level.Level() != slog.LevelInfo {
		t.Errorf("in force are %+v, level %s", r.now.Limits, r.level)
	}
	r.refusal = nil
	r.says(r.hangup("slots: 6"), "changes=1", `changed.slots="4 -> 6"`)
}

// TestEveryOtherSettingIsFixed: what is not live is refused by name, all of it.
func TestEveryOtherSettingIsFixed(t *testing.T) {
	other := map[string]string{"bool": "true", "int": "12345", "int64": "12345", "duration": "77s", "string": "other"}
	exceptions := map[string]string{"database": "postgres://db.example/x", "log-level": "warn", "log-format": "json"}
	var fixed []string
	var text strings.Builder
	newSettings().flags.VisitAll(func(f *pflag.Flag) {
		value, ok := exceptions[f.Name]
		if !ok {
			value = other[f.Value.Type()]
		}
		text.WriteString(f.Name + ": " + value + "\n")
		if !slices.Contains(live, f.Name) {
			fixed = append(fixed, f.Name)
		}
	})
	r := newReloadTest(t, "")
	r.says(r.hangup(text.String()), strings.Join(fixed, ", ")+": changes only with a restart")
	if len(fixed)+len(live) != strings.Count(text.String(), "\n") {
		t.Errorf("live is %v, but a flag of one of these names is not there", live)
	}
}
