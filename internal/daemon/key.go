package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/microvmd/microvm/internal/httpapi"
	"github.com/microvmd/microvm/internal/sqlstore"
)

// keyStore gives httpapi the store's keys.
type keyStore struct{ *sqlstore.Store }

func (s keyStore) InsertKey(ctx context.Context, id, name string, hash [32]byte, created time.Time) error {
	return s.Store.InsertKey(ctx, sqlstore.Key{ID: id, Name: name, Hash: hash, Created: created})
}

func (s keyStore) KeyByHash(ctx context.Context, hash [32]byte) (string, [32]byte, bool, error) {
	key, err := s.Store.KeyByHash(ctx, hash)
	if errors.Is(err, sqlstore.ErrNoKey) {
		return "", hash, false, nil
	}
	return key.ID, key.Hash, err == nil, err
}

// firstKey makes the admin key at the first start and puts its text into
// admin.key, root-only, where the command line finds it. A start that was
// killed in between leaves a text that is no key yet: the next one writes
// another.
func firstKey(ctx context.Context, store *sqlstore.Store, keys *httpapi.KeyRing, dir string) error {
	if have, err := store.Keys(ctx); err != nil || len(have) > 0 {
		return err
	}
	path := filepath.Join(dir, "admin.key")
	_, err := keys.Make(ctx, "admin", func(token string) error {
		draft := path + ".new"
		if err := os.WriteFile(draft, []byte(token+"\n"), 0o600); err != nil {
			return err
		}
		return os.Rename(draft, path)
	})
	return err
}
