package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"strings"
	"testing"
)

func testKey(t testing.TB) *Key {
	t.Helper()
	key, err := LoadKey(filepath.Join(t.TempDir(), "secret.key"))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// fullest is an environment at both bounds.
func fullest() Env {
	env := Env{}
	for i := range MaxEntries {
		env[fmt.Sprintf("NAME%02d", i)] = ""
	}
	env["NAME00"] = strings.Repeat("\xff", MaxBytes-env.size())
	return env
}

func TestSealAndOpen(t *testing.T) {
	key := testKey(t)
	for name, env := range map[string]Env{
		"empty": {}, "nil": nil, "one": {"A": "b"}, "empty value": {"A": ""}, "equals in value": {"A": "=b=c="},
		"any bytes": {"ü \n": "\x01\xff\n\"", "_": "x"}, "fullest": fullest(),
	} {
		sealed, err := key.Seal(env, "sb_1")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if (sealed == "") != (len(env) == 0) || len(sealed) > sealedMost {
			t.Errorf("%s: sealed to %d bytes of at most %d", name, len(sealed), sealedMost)
		}
		got, err := key.Open(sealed, "sb_1")
		if err != nil || !maps.Equal(got, env) {
			t.Errorf("%s: opened to %q, %v", name, map[string]string(got), err)
		}
	}
	if sealed, err := key.Seal(Env{"A=B": marker}, "sb_1"); err == nil || sealed != "" || strings.Contains(err.Error(), marker) {
		t.Errorf("what is no environment was sealed, or shown: %v", err)
	}
}

func TestEachSealIsAnother(t *testing.T) {
	key, env := testKey(t), Env{"TOKEN": marker}
	one, err := key.Seal(env, "sb_1")
	if err != nil {
		t.Fatal(err)
	}
	two, err := key.Seal(env, "sb_1")
	if err != nil {
		t.Fatal(err)
	}
	if one == two {
		t.Error("two seals are the same: the nonce is not random")
	}
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(one, sealedPrefix))
	if err != nil || bytes.Contains(raw, []byte(marker)) || bytes.Contains(raw, []byte("TOKEN")) {
		t.Errorf("the sealed text shows what is in it: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	key := testKey(t)
	sealed, err := key.Seal(Env{"TOKEN": marker}, "sb_1")
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string, key *Key, sealed, id, says string) {
		t.Helper()
		env, err := key.Open(sealed, id)
		if err == nil || env != nil {
			t.Errorf("%s was opened", what)
			return
		}
		if !strings.Contains(err.Error(), says) || len(sealed) > 8 && strings.Contains(err.Error(), sealed[4:8]) || strings.Contains(err.Error(), marker) {
			t.Errorf("%s: %v", what, err)
		}
	}
	other := testKey(t)
	refused("another key's", other, sealed, "sb_1", other.path)
	refused("another sandbox's", key, sealed, "sb_2", key.path)
	for i := range sealed {
		refused(fmt.Sprintf("one cut at %d", i), key, sealed[:max(i, 1)], "sb_1", "open environment: ")
		garbled := []byte(sealed)
		garbled[i] ^= 1
		refused(fmt.Sprintf("one garbled at %d", i), key, string(garbled), "sb_1", "open environment: ")
	}
	refused("one with more behind", key, sealed+"AA", "sb_1", key.path)
	refused("plain text", key, "TOKEN="+marker, "sb_1", "this release")
	refused("a later form", key, "v2."+sealed[3:], "sb_1", "newer")
	refused("one of any length", key, sealedPrefix+strings.Repeat("A", sealedMost), "sb_1", "this release")
}

func TestNothingShowsAKey(t *testing.T) {
	raw := []byte(strings.Repeat("k", KeySize))
	key, err := newKey(raw, "/a/secret.key")
	if err != nil {
		t.Fatal(err)
	}
	type holder struct {
		Key    *Key
		hidden *Key
	}
	h := holder{key, key}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("m", "key", key, "holder", h)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("m", "key", key, "holder", h)
	text, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	seen := log.String() + string(text)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x"} {
		seen += fmt.Sprintf(verb, key) + fmt.Sprintf(verb, *key) + fmt.Sprintf(verb, h)
	}
	// The first round key is the key itself: 0x6b6b6b6b, as each of these would have it.
	for _, form := range []string{"kkkk", "6b6b", "107 107", "1802201963", "aead"} {
		if strings.Contains(seen, form) {
			t.Errorf("%q is shown: %s", form, seen)
		}
	}
}

// FuzzOpen: what Open takes was sealed by its key, so whatever else comes is
// refused, without a panic.
func FuzzOpen(f *testing.F) {
	key := testKey(f)
	sealed, err := key.Seal(Env{"A": "", "TOKEN": marker}, "sb_1")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sealed, "sb_1")
	f.Add(sealed, "sb_2")
	f.Add(sealed[:len(sealed)-4], "sb_1")
	f.Add("v1.", "")
	f.Add("v1.AAAA", "sb_1")
	f.Add("", "sb_1")
	f.Fuzz(func(t *testing.T, text, id string) {
		env, err := key.Open(text, id)
		switch genuine := text == "" || text == sealed && id == "sb_1"; {
		case genuine != (err == nil):
			t.Errorf("open of %q for %q: %v", text, id, err)
		case err != nil && env != nil:
			t.Error("an error with an environment")
		}
	})
}
