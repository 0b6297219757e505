package httpapi

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/ident"
)

// The form of a key's text: a prefix by which scanners for leaked secrets can
// tell it, and 256 random bits. A hash without salt or stretching is enough for
// that much entropy.
const (
	tokenPrefix = "mvk_"
	tokenBytes  = 32
	tokenLength = len(tokenPrefix) + 2*tokenBytes
)

const keyPrefix ident.Prefix = "key"

// KeyStore keeps the hashes of keys, and never their text.
type KeyStore interface {
	// InsertKey adds a key. A write that returned nil survives a crash.
	InsertKey(ctx context.Context, id, name string, hash [32]byte, created time.Time) error
	// KeyByHash finds a key's id and the hash that it was stored with; ok is
	// false when there is none.
	KeyByHash(ctx context.Context, hash [32]byte) (id string, stored [32]byte, ok bool, err error)
}

// KeyRing makes and verifies keys. It is safe for concurrent use.
type KeyRing struct {
	store KeyStore
}

var _ Keys = (*KeyRing)(nil)

// NewKeyRing makes a KeyRing over a store.
func NewKeyRing(store KeyStore) *KeyRing { return &KeyRing{store: store} }

// Make makes and stores a new key. Its token is given to hand before the key is
// stored, and never again: a key that is stored has reached its owner.
func (k *KeyRing) Make(ctx context.Context, name string, hand func(token string) error) (id string, err error) {
	var secret [tokenBytes]byte
	_, _ = rand.Read(secret[:]) // never fails: crypto/rand, since Go 1.24
	token := tokenPrefix + hex.EncodeToString(secret[:])
	if err := hand(token); err != nil {
		return "", fmt.Errorf("make key: hand it out: %w", err)
	}
	id = ident.New(keyPrefix)
	if err := k.store.InsertKey(ctx, id, name, sha256.Sum256([]byte(token)), time.Now().UTC()); err != nil {
		return "", fmt.Errorf("make key: %w", err)
	}
	return id, nil
}

// Verify returns nil for a token that Make returned, and a fault.TokenInvalid
// for any other.
func (k *KeyRing) Verify(ctx context.Context, token string) error {
	invalid := fault.New(fault.TokenInvalid, "the key does not exist; send one whole: the node's first is in admin.key of its state directory")
	if len(token) != tokenLength {
		return invalid
	}
	hash := sha256.Sum256([]byte(token))
	_, stored, ok, err := k.store.KeyByHash(ctx, hash)
	if err != nil {
		return fmt.Errorf("verify key: %w", err)
	}
	if !ok || subtle.ConstantTimeCompare(hash[:], stored[:]) != 1 {
		return invalid
	}
	return nil
}
