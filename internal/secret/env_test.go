package secret

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"testing"

	"github.com/microvmd/microvm/internal/fault"
)

const marker = "s3cr3t-marker"

func TestNothingShowsAnEnv(t *testing.T) {
	env := Env{"TOKEN": marker, marker: "x"}
	type holder struct{ Env Env }
	seen := map[string]string{}
	// Not %p of what holds one, nor %w: fmt calls those mistakes and shows what it
	// was given, and go vet refuses them.
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x", "%X", "%t", "%20v", "%-20s"} {
		seen["fmt "+verb] = fmt.Sprintf(verb, env)
		seen["fmt in struct "+verb] = fmt.Sprintf(verb, holder{env})
		seen["fmt of pointer "+verb] = fmt.Sprintf(verb, &holder{env})
		seen["fmt in map "+verb] = fmt.Sprintf(verb, map[string]any{"env": env})
		seen["fmt in slice "+verb] = fmt.Sprintf(verb, []Env{env})
	}
	seen["print"] = fmt.Sprint(env, &env) + fmt.Sprintln(env)
	seen["error"] = fmt.Errorf("start: %w", fmt.Errorf("with %v: %w", env, errors.New("no"))).Error()
	seen["fault"] = fault.Param("env", "env %v is wrong", env).Error()
	for name, handler := range map[string]func(*bytes.Buffer) slog.Handler{
		"text": func(to *bytes.Buffer) slog.Handler { return slog.NewTextHandler(to, nil) },
		"json": func(to *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(to, nil) },
	} {
		var to bytes.Buffer
		log := slog.New(handler(&to)).With("with", env)
		log.Info("message", "env", env, "pointer", &env, "holder", holder{env}, slog.Group("group", "env", env), "list", []Env{env})
		seen["slog "+name] = to.String()
	}
	text, err := json.Marshal(map[string]any{"env": env, "pointer": &env, "holder": holder{env}})
	if err != nil {
		t.Fatal(err)
	}
	seen["json"] = string(text)
	text, err = xml.Marshal(env)
	if err != nil {
		t.Fatal(err)
	}
	seen["xml"] = string(text)
	for where, text := range seen {
		if strings.Contains(text, marker) || strings.Contains(text, "TOKEN") || strings.Contains(text, hex.EncodeToString([]byte(marker))) {
			t.Errorf("%s shows the environment: %s", where, text)
		}
		if !strings.Contains(text, redacted) {
			t.Errorf("%s does not say that something is hidden: %s", where, text)
		}
	}
}

func TestMergeLetsTheLaterWin(t *testing.T) {
	base, over := Env{"A": "1", "B": "1"}, Env{"B": "2", "C": "2"}
	got := Merge(base, over)
	if !maps.Equal(got, Env{"A": "1", "B": "2", "C": "2"}) {
		t.Fatalf("merged to %v entries", map[string]string(got))
	}
	if base["B"] != "1" || len(over) != 2 {
		t.Fatal("an argument was changed")
	}
	got["A"] = "changed"
	if base["A"] != "1" {
		t.Fatal("the result shares its map with an argument")
	}
	if Merge(nil, Env{}) != nil {
		t.Fatal("two empty environments are not nil")
	}
}

func TestCheckNamesTheParameterAndNoValue(t *testing.T) {
	many := Env{}
	for i := range MaxEntries {
		many["N"+strconv.Itoa(i)] = ""
	}
	if err := many.Check("env"); err != nil {
		t.Fatalf("%d entries: %v", MaxEntries, err)
	}
	over := Merge(many, Env{"ONE_MORE": ""})
	most := Env{"A": strings.Repeat("v", MaxBytes/2-1), "B": strings.Repeat("v", MaxBytes/2-1)}
	if err := most.Check("env"); err != nil {
		t.Fatalf("%d bytes: %v", MaxBytes, err)
	}
	if err := Env(nil).Check("env"); err != nil {
		t.Fatal(err)
	}
	if err := (Env{"a b-ü\n": "any\nthing=\xff", "PATH": ""}).Check("env"); err != nil {
		t.Fatalf("what the kernel takes is refused: %v", err)
	}
	for name, c := range map[string]struct {
		env  Env
		says string
	}{
		"too many":      {over, "at most 100 entries"},
		"too large":     {Merge(most, Env{"C": ""}), "65537 bytes"},
		"no name":       {Env{"": marker}, "without a name"},
		"equals":        {Env{"A=" + marker: "v"}, "'='"},
		"NUL in name":   {Env{"A\x00" + marker: "v"}, "NUL"},
		"NUL in value":  {Env{"GOOD_NAME": marker + "\x00"}, "GOOD_NAME"},
		"name is value": {Env{marker: "\x00"}, "one entry"},
	} {
		err := c.env.Check("env")
		var f *fault.Error
		if !errors.As(err, &f) || f.Code != fault.ParameterInvalid || f.Param != "env" {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !strings.Contains(f.Message, c.says) || strings.Contains(f.Message, marker) {
			t.Errorf("%s: %s", name, f.Message)
		}
	}
}
