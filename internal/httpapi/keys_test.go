package httpapi

import (
	"context"
	"crypto/sha256"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/microvmd/microvm/internal/fault"
)

type keyStore struct {
	hashes map[[32]byte]string
	text   []string
	err    error
	liar   bool // finds a key for every hash
}

func (s *keyStore) InsertKey(_ context.Context, id, name string, hash [32]byte, _ time.Time) error {
	s.hashes[hash] = id
	s.text = append(s.text, id, name)
	return s.err
}

func (s *keyStore) KeyByHash(_ context.Context, hash [32]byte) (id string, stored [32]byte, ok bool, err error) {
	id, ok = s.hashes[hash]
	if s.liar {
		return "key_x", [32]byte{}, true, nil
	}
	return id, hash, ok, s.err
}

func TestKeyRing(t *testing.T) {
	store := &keyStore{hashes: map[[32]byte]string{}}
	ring := NewKeyRing(store)
	var token string
	take := func(made string) error { token = made; return nil }
	id, err := ring.Make(t.Context(), "first", take)
	if err != nil || !strings.HasPrefix(id, "key_") || !regexp.MustCompile(`^mvk_[0-9a-f]{64}$`).MatchString(token) {
		t.Fatal(id, token, err)
	}
	if store.hashes[sha256.Sum256([]byte(token))] != id {
		t.Error("the hash is not the token's")
	}
	if strings.Contains(strings.Join(store.text, " "), token) {
		t.Error("the token was stored")
	}
	if err := ring.Verify(t.Context(), token); err != nil {
		t.Error(err)
	}
	first := token
	if _, err := ring.Make(t.Context(), "second", take); err != nil || token == first {
		t.Error("two keys are alike")
	}
	for _, wrong := range []string{"", "mvk_", token[:len(token)-1], token + "0", strings.ToUpper(token), "mvk_" + strings.Repeat("0", 64)} {
		if err := ring.Verify(t.Context(), wrong); !fault.Is(err, fault.TokenInvalid) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	store.liar = true
	if err := ring.Verify(t.Context(), token); !fault.Is(err, fault.TokenInvalid) {
		t.Errorf("a key with another hash was taken: %v", err)
	}
	store.liar, store.err = false, errors.New("disk")
	if err := ring.Verify(t.Context(), token); err == nil || fault.Is(err, fault.TokenInvalid) {
		t.Errorf("a store that fails: %v", err)
	}
	if _, err := ring.Make(t.Context(), "third", take); err == nil {
		t.Error("a key that was not stored passes for made")
	}
	stored := len(store.hashes)
	if _, err := ring.Make(t.Context(), "fourth", func(string) error { return errors.New("disk") }); err == nil || len(store.hashes) != stored {
		t.Error("a key that reached nobody was stored")
	}
}
