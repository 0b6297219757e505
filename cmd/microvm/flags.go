package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/pflag"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// seconds is a flag for a time that the API takes in whole seconds: "90" or
// "90s", "15m", "2h". Zero is not set.
type seconds int

func (s *seconds) String() string {
	if *s == 0 {
		return ""
	}
	return (time.Duration(*s) * time.Second).String()
}

func (s *seconds) Type() string { return "time" }

func (s *seconds) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil {
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("must be seconds or a time such as 90s, 15m or 2h")
		}
		if d%time.Second != 0 {
			return fmt.Errorf("must be whole seconds")
		}
		n = int(d / time.Second)
	}
	if n < 1 {
		return fmt.Errorf("must be at least 1 s")
	}
	*s = seconds(n)
	return nil
}

// pointer is the value for an optional field of the API.
func (s seconds) pointer() *int {
	if s == 0 {
		return nil
	}
	return new(int(s))
}

// idleTime is a flag for a time without use: as seconds, or "never", which the
// API takes as a negative number. Zero is not set.
type idleTime int

const neverIdle = "never"

func (i *idleTime) String() string {
	if *i < 0 {
		return neverIdle
	}
	return (*seconds)(i).String()
}

func (i *idleTime) Type() string { return "time" }

func (i *idleTime) Set(text string) error {
	if text == neverIdle {
		*i = -1
		return nil
	}
	if err := (*seconds)(i).Set(text); err != nil {
		return fmt.Errorf("%w, or %s", err, neverIdle)
	}
	return nil
}

// pointer is the value for an optional field of the API.
func (i idleTime) pointer() *int { return seconds(i).pointer() }

// pairs is a flag k=v that may come several times.
type pairs map[string]string

func (p *pairs) String() string { return "" }
func (p *pairs) Type() string   { return "key=value" }

func (p *pairs) Set(text string) error {
	key, value, ok := strings.Cut(text, "=")
	if !ok || key == "" {
		return fmt.Errorf("must be KEY=VALUE")
	}
	if _, twice := (*p)[key]; twice {
		return fmt.Errorf("%q comes twice", key)
	}
	if *p == nil {
		*p = pairs{}
	}
	(*p)[key] = value
	return nil
}

// variables is --env: NAME=VALUE, or NAME alone for the value that it has here.
// What is wrong with one is found by env, as the library that reads flags would
// print the whole text, and with it a secret.
type variables []string

func (v *variables) String() string { return "" }
func (v *variables) Type() string   { return "name[=value]" }

func (v *variables) Set(text string) error {
	*v = append(*v, text)
	return nil
}

func (v *variables) add(flags *pflag.FlagSet) {
	flags.VarP(v, "env", "e", "an environment variable, NAME=VALUE, or NAME for the value that it has here, which other users do not see; may be repeated")
}

// env is what the API takes.
func (v variables) env(look func(string) (string, bool)) (microvm.Env, error) {
	env := microvm.Env{}
	for _, text := range v {
		name, value, given := strings.Cut(text, "=")
		if name == "" {
			return nil, usage("--env wants a name before the =, as in --env TOKEN=VALUE")
		}
		if !given {
			var ok bool
			if value, ok = look(name); !ok {
				return nil, hint(usage("--env %s: it is not set here", name), fmt.Sprintf("export %s, or give its value: --env %s=...", name, name))
			}
		}
		if _, twice := env[name]; twice {
			return nil, usage("--env %s comes twice", name)
		}
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return nil, usage("--env %s: it is no UTF-8", name)
		}
		env[name] = value
	}
	return env, nil
}

// optional returns a pointer to a flag's value when the flag was given.
func optional[T any](flags *pflag.FlagSet, name string, value T) *T {
	if !flags.Changed(name) {
		return nil
	}
	return &value
}
