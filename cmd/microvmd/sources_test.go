package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// load reads settings as a microvmd with these arguments does.
func load(t *testing.T, args ...string) (*settings, error) {
	t.Helper()
	cmd := command()
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return newSources(cmd.Flags()).load()
}

// configuration makes a file.
func configuration(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPrecedence(t *testing.T) {
	defaults := newSettings()
	path := configuration(t, "slots: 7", "max-ttl: 2h30m", "drain: true", "listen: 127.0.0.1:1", "instance: '5'", "log-level: warn")
	fromFile, err := load(t, "--config", path)
	if err != nil {
		t.Fatal(err)
	}
	if fromFile.Limits.Slots != 7 || fromFile.Limits.MaxTTL != 150*time.Minute || !fromFile.Drain || fromFile.Listen != "127.0.0.1:1" ||
		fromFile.Instance != "5" || fromFile.level.String() != "WARN" || len(fromFile.hidden) != 0 {
		t.Errorf("of the file: %+v", fromFile.Config)
	}
	if fromFile.Limits.VCPUs != defaults.Limits.VCPUs || fromFile.StateDir != defaults.StateDir {
		t.Errorf("what the file is silent on: %+v", fromFile.Config)
	}
	flags, err := load(t, "--slots", "3", "--drain=false", "--config", path)
	if err != nil {
		t.Fatal(err)
	}
	if flags.Limits.Slots != 3 || flags.Drain || flags.Listen != "127.0.0.1:1" || strings.Join(flags.hidden, " ") != "slots drain" {
		t.Errorf("flags over the file: %+v, %v", flags.Config, flags.hidden)
	}

	// Which file: flag, environment, default.
	t.Setenv("MICROVM_CONFIG", path)
	if named, err := load(t); err != nil || named.Limits.Slots != 7 {
		t.Errorf("the environment's file: %v", err)
	}
	t.Setenv("MICROVM_CONFIG", path)
	if named, err := load(t, "--config", configuration(t, "slots: 9")); err != nil || named.Limits.Slots != 9 {
		t.Errorf("the flag's file over the environment's: %v", err)
	}
	t.Setenv("MICROVM_CONFIG", path)
	if none, err := load(t, "--config", ""); err != nil || none.Limits.Slots != defaults.Limits.Slots {
		t.Errorf("no file: %v", err)
	}
	for _, missing := range []func() *sources{
		func() *sources { return &sources{file: filepath.Join(t.TempDir(), "none")} },
		func() *sources { t.Setenv("MICROVM_CONFIG", "/none"); return newSources(command().Flags()) },
	} {
		from := missing()
		if _, err := from.load(); err == nil || !strings.Contains(err.Error(), from.file) {
			t.Errorf("a file that was named is missing: %v", err)
		}
	}
	optional := newSources(command().Flags())
	if optional.file != defaultFile || !optional.optional {
		t.Errorf("by default: %+v", optional)
	}
	optional.file = filepath.Join(t.TempDir(), "none")
	if s, err := optional.load(); err != nil || s.Limits.Slots != defaults.Limits.Slots {
		t.Errorf("the default file is missing: %v", err)
	}
}

func TestFaultsInAFile(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"slots: 4\nslot: 5", []string{":2:1: slot is no setting"}},
		{"config: /x\nhelp: true\nversion: true", []string{":1:1: config is no", ":2:1: help is no", ":3:1: version is no"}},
		{"# limits\n\nslots: 4\nvcpus: 8\nslots: 5", []string{":5:1: slots is set in line 3 already"}},
		{`slots: 4` + "\n" + `"slots": 5`, []string{":2:1: slots is set in line 1"}},
		{"slots: many", []string{`:1:8: slots is "many" and must be a whole number`}},
		{"slots: '4'", []string{":1:8: slots is"}},
		{"slots: 4.5", []string{":1:8: slots is"}},
		{"slots: 99999999999999999999", []string{":1:8: slots is"}},
		{"slots:\nvcpus: 3", []string{":1:", "slots is", "whole number"}},
		{"slots: [4]", []string{":1:8: slots is"}},
		{"slots: {a: 4}", []string{"slots is"}},
		{"slots: &a 4\nvcpus: *a", []string{"slots is", ":2:8: vcpus is"}},
		{"slots: !!int 4", []string{":1:8: slots is"}},
		{"drain: yes", []string{`:1:8: drain is "yes" and must be true or false`}},
		{"max-ttl: 30", []string{`:1:10: max-ttl is "30" and must be a time`}},
		{"max-ttl: 30 minutes", []string{`:1:10: max-ttl is "30 minutes"`}},
		{"instance: 5", []string{":1:11: instance is", "quotes"}},
		{"instance: |\n  text", []string{":1:11: instance is"}},
		{"log-level: loud", []string{`log-level is "loud"`}},
		{"log-format: xml", []string{`log-format is "xml"`}},
		{"slots: x\nvcpus: y\nslot: 1", []string{":1:8: slots", ":2:8: vcpus", ":3:1: slot "}},
		{"- slots: 4", []string{":1:", "one document"}},
		{"just words", []string{":1:1: a configuration is one document"}},
		{"slots: 4\n---\nslots: 5", []string{":3:", "one document"}},
		{"slots: 4\n  vcpus: 3", []string{":1:8: mapping value"}},
		{"slots: [4", []string{":1:"}},
		{"<<: {slots: 4}", []string{"<< is no setting"}},
	} {
		path := configuration(t, c.text)
		_, err := load(t, "--config", path)
		if err == nil {
			t.Errorf("%q was taken", c.text)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) && !strings.HasPrefix(want, "log-") {
				t.Errorf("%q: no %q in %v", c.text, want, err)
			}
		}
	}
	for _, text := range []string{"", "# nothing\n", "---\n", "{slots: 4}", "slots: 0x4", `listen: ""`, "---\nslots: 4"} {
		if _, err := load(t, "--config", configuration(t, text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestOnlyRootsFile: who can write the file decides what root runs.
func TestOnlyRootsFile(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(path string) error
		want  string
	}{
		"all may write it":      {func(path string) error { return os.Chmod(path, 0o606) }, "can be written by others"},
		"a group may write it":  {func(path string) error { return os.Chmod(path, 0o660) }, "can be written by others"},
		"another's":             {func(path string) error { return os.Chown(path, 1000, 0) }, "belongs to uid 1000"},
		"in another's place":    {func(path string) error { return os.Chown(filepath.Dir(path), 1000, 0) }, "belongs to uid 1000"},
		"replaced by others":    {func(path string) error { return os.Chmod(filepath.Dir(path), 0o777) }, "can be written by others"},
		"a symlink":             {func(path string) error { return elsewhere(path) }, "is a symlink"},
		"a directory":           {func(path string) error { return swap(path, func() error { return os.Mkdir(path, 0o700) }) }, "no regular file"},
		"larger than any of it": {func(path string) error { return os.Truncate(path, maxFile+1) }, "over 1048576 bytes"},
	} {
		path := configuration(t, "slots: 4")
		if _, err := load(t, "--config", path); err != nil {
			t.Fatal(err)
		}
		if err := c.spoil(path); err != nil {
			t.Fatal(err)
		}
		if _, err := load(t, "--config", path); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), filepath.Dir(path)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func elsewhere(path string) error {
	if err := os.Rename(path, path+".real"); err != nil {
		return err
	}
	return os.Symlink(path+".real", path)
}

func swap(path string, by func() error) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return by()
}

// TestEveryFlagIsAKey: a new flag is a key of the file, and stands in the example
// with its default.
func TestEveryFlagIsAKey(t *testing.T) {
	example, err := os.ReadFile("../../packaging/microvmd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string // its settings, which are all comments
	for line := range strings.Lines(string(example)) {
		if setting, ok := strings.CutPrefix(line, "#"); ok && !strings.HasPrefix(setting, " ") && strings.TrimSpace(setting) != "" {
			lines = append(lines, strings.TrimSuffix(setting, "\n"))
		} else if !ok && strings.TrimSpace(line) != "" {
			t.Errorf("the example sets something: %s", line)
		}
	}
	from := &sources{file: configuration(t, lines...)}
	entries, err := from.entries()
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, e := range entries {
		shown[e.key] = true
	}
	s, err := from.load()
	if err != nil {
		t.Fatal(err)
	}
	byHost := map[string]bool{"slots": true, "vcpus": true, "mem-mib": true, "max-vcpus": true, "boots-at-once": true}
	for _, c := range newSettings().changes(s) {
		if !byHost[c.name] {
			t.Errorf("the example has %s: %s, the default is %s", c.name, c.to, c.from)
		}
	}
	s.flags.VisitAll(func(f *pflag.Flag) {
		if kinds[f.Value.Type()].words == "" {
			t.Errorf("--%s is a %s: no value of the file has such a type", f.Name, f.Value.Type())
		}
		if !shown[f.Name] {
			t.Errorf("%s is not in the example", f.Name)
		}
	})
}
