package main

import (
	"errors"
	"os"

	"github.com/spf13/pflag"
)

// defaultFile is read if it is there.
const defaultFile = "/etc/microvm/microvmd.yaml"

// sources is where settings come from, at the start and again on each hangup.
type sources struct {
	given       map[string]string // flags of the command line, by name
	environment map[string]string // by flag's name
	file        string            // "" is none
	optional    bool              // the file may be missing
	notify      string            // socket of the service manager
}

// newSources takes the command line and the environment. What it finds there it
// takes out, so that no program that the daemon starts gets it.
func newSources(flags *pflag.FlagSet) *sources {
	from := &sources{given: map[string]string{}, environment: map[string]string{}, file: defaultFile, optional: true, notify: take("NOTIFY_SOCKET")}
	flags.Visit(func(f *pflag.Flag) { from.given[f.Name] = f.Value.String() })
	for name, variable := range variables {
		if value := take(variable); value != "" {
			from.environment[name] = value
		}
	}
	for _, named := range []map[string]string{from.environment, from.given} {
		if file, ok := named["config"]; ok {
			from.file, from.optional = file, false
			delete(named, "config")
		}
	}
	return from
}

func take(variable string) string {
	value := os.Getenv(variable)
	_ = os.Unsetenv(variable) // fails for no name that has no "=" in it
	return value
}

// load is the one place that knows what counts: a flag before the environment,
// that before the file, and that before the default.
func (from *sources) load() (*settings, error) {
	s := newSettings()
	entries, err := from.entries()
	if err != nil {
		return nil, err
	}
	var all []error
	for _, e := range entries {
		all = append(all, e.set(s.flags))
		_, inEnvironment := from.environment[e.key]
		if _, given := from.given[e.key]; given || inEnvironment {
			s.hidden = append(s.hidden, e.key)
		}
	}
	for _, stronger := range []map[string]string{from.environment, from.given} {
		for name, value := range stronger {
			if f := s.flags.Lookup(name); f != nil { // cobra has its own: help, version
				all = append(all, f.Value.Set(value))
			}
		}
	}
	if given, ok := from.given["database"]; ok {
		all = append(all, noPassword(given))
	}
	all = append(all, s.complete())
	return s, errors.Join(all...)
}

func (from *sources) entries() ([]entry, error) {
	if from.file == "" {
		return nil, nil
	}
	text, err := readFile(from.file)
	if from.optional && errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parse(from.file, text)
}
