package bench

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestLanguagesTakeTurns(t *testing.T) {
	var diary []string
	side := func(name string, ms int) sample {
		return func(context.Context) (time.Duration, error) {
			diary = append(diary, name)
			return time.Duration(ms) * time.Millisecond, nil
		}
	}
	got, err := languages[0].measure(t.Context(), 2, io.Discard, side("host", 1), side("restored", 2), side("cold", 3))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"host", "restored", "cold", "restored", "cold", "host", "cold", "host", "restored"}
	if !slices.Equal(diary, want) {
		t.Errorf("calls were %v, want %v", diary, want)
	}
	for _, s := range []struct {
		name string
		got  Stats
		want float64
	}{{"host", got.Host, 1}, {"restored", got.Restored, 2}, {"cold", got.Cold, 3}} {
		if s.got.Median != s.want || len(s.got.Samples) != 2 {
			t.Errorf("%s: %+v, want 2 samples of %v", s.name, s.got, s.want)
		}
	}
	table := Report{Languages: []LanguageResult{got}}.Table()
	if !strings.Contains(table, "python: python3 main.py") || strings.Contains(table, "FIGURE") {
		t.Errorf("table is\n%s", table)
	}
}

func TestLanguageFails(t *testing.T) {
	broken := errors.New("broken")
	good := func(context.Context) (time.Duration, error) { return 1, nil }
	bad := func(context.Context) (time.Duration, error) { return 0, broken }
	for name, sides := range map[string][3]sample{"host": {bad, good, good}, "restored": {good, bad, good}, "cold": {good, good, bad}} {
		_, err := languages[0].measure(t.Context(), 1, io.Discard, sides[0], sides[1], sides[2])
		if !errors.Is(err, broken) || !strings.Contains(err.Error(), "("+name+")") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := languages[0].greeted("hell"); err == nil {
		t.Error("a wrong greeting is taken")
	}
}

func TestLanguagesAreFoundByName(t *testing.T) {
	got, err := findLanguages([]string{"exec", "language-go"})
	if err != nil || len(got) != 1 || got[0].image != "go" {
		t.Errorf("found %+v, %v", got, err)
	}
	if got, err := findLanguages(nil); err != nil || len(got) != 0 {
		t.Errorf("without a wish: %+v, %v", got, err)
	}
	if _, err := findLanguages([]string{"language-cobol"}); err == nil || !strings.Contains(err.Error(), "language-rust") {
		t.Errorf("an unknown one: %v", err)
	}
}
