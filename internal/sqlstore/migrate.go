package sqlstore

import (
	"context"
	"embed"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"
)

// Migrations go forward only. A released one never changes; the next is a new
// file, and testdata gets the rows that a store of the schema before it has.
//
//go:embed migrations/*.sql
var migrationFiles embed.FS

func (s *Store) migrations() (*goose.Provider, error) {
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return nil, err
	}
	dialect, options, err := s.engine.migration()
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(dialect, s.write, files, append(options, goose.WithDisableGlobalRegistry(true))...)
}

func (s *Store) migrate(ctx context.Context) error {
	provider, err := s.migrations()
	if err != nil {
		return err
	}
	current, target, err := provider.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("read schema version: %w", err)
	}
	if current > target {
		return fmt.Errorf("%s has schema %d, this release knows up to %d; start the release that wrote it, or a newer one", s.name, current, target)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate from schema %d to %d: %w", current, target, err)
	}
	return nil
}
