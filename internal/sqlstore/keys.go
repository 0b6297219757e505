package sqlstore

import (
	"context"
	"crypto/subtle"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// ErrNoKey means that no key has the hash; what a caller is told is not the
// store's to say.
var ErrNoKey = errors.New("no such key")

// Key is what is kept of an API key. The key itself is shown once and kept
// nowhere.
type Key struct {
	ID      string
	Name    string   // for people; need not be unique
	Hash    [32]byte // SHA-256 of the key's whole text
	Created time.Time
}

const selectKey = "SELECT id, name, hash, created_ms FROM api_keys"

func scanKey(r row) (Key, error) {
	var k Key
	var hash string
	var created int64
	if err := r.Scan(&k.ID, &k.Name, &hash, &created); err != nil {
		return k, err
	}
	raw, err := hex.DecodeString(hash)
	if err != nil || len(raw) != len(k.Hash) {
		return k, fmt.Errorf("hash of %s is no SHA-256", k.ID)
	}
	copy(k.Hash[:], raw)
	k.Created = fromMillis(created)
	return k, nil
}

// InsertKey adds a key; an id or a hash that is there already is refused.
func (s *Store) InsertKey(ctx context.Context, k Key) error {
	return s.explain("insert key", s.insert(ctx, synced, func(tx *sql.Tx) error {
		n, err := affected(tx.ExecContext(ctx, "INSERT INTO api_keys (id, name, hash, created_ms) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
			k.ID, k.Name, hex.EncodeToString(k.Hash[:]), toMillis(k.Created)))
		if err == nil && n == 0 {
			err = fmt.Errorf("%s or its hash %w", k.ID, errThere)
		}
		return err
	}))
}

// KeyByHash finds the key with this hash, or ErrNoKey. How long it
// takes tells nothing of use: a caller cannot choose the hash of a guess.
func (s *Store) KeyByHash(ctx context.Context, hash [32]byte) (Key, error) {
	k, err := scanKey(s.read.QueryRowContext(ctx, selectKey+" WHERE hash = $1", hex.EncodeToString(hash[:])))
	if errors.Is(err, sql.ErrNoRows) || err == nil && subtle.ConstantTimeCompare(k.Hash[:], hash[:]) != 1 {
		return Key{}, fmt.Errorf("read key: %w", ErrNoKey)
	}
	return k, s.explain("read key", err)
}

// Keys returns all keys, oldest first.
func (s *Store) Keys(ctx context.Context) ([]Key, error) {
	keys, err := collect(ctx, s.read, selectKey+" ORDER BY created_ms, id", nil, scanKey)
	return keys, s.explain("list keys", err)
}
