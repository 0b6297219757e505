package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/microvmd/microvm/internal/daemon"
)

// reloader puts other settings in force while the daemon runs.
type reloader struct {
	from  *sources
	log   *slog.Logger
	level *slog.LevelVar
	now   *settings // in force
}

// reload is a daemon.Reload.
func (r *reloader) reload(apply func(daemon.Config) error) {
	next, err := r.from.load()
	if err == nil {
		err = refuseFixed(r.now.changes(next))
	}
	if err == nil {
		err = apply(next.Config)
	}
	if err != nil {
		r.log.Error("configuration not reloaded: nothing is changed", "file", r.from.file, "error", err)
		return
	}
	changed := make([]any, 0, len(live))
	for _, c := range r.now.changes(next) {
		changed = append(changed, slog.String(c.name, c.from+" -> "+c.to))
	}
	r.level.Set(min(r.now.level, next.level)) // so that this is seen with either
	r.log.Info("configuration reloaded", "file", r.from.file, "changes", len(changed), slog.Group("changed", changed...))
	r.tell(next)
	r.level.Set(next.level)
	r.now = next
}

// tell says what of the file is without effect: somebody may wonder.
func (r *reloader) tell(s *settings) {
	if len(s.hidden) > 0 {
		r.log.Info("flags or the environment override the file", "file", r.from.file, "settings", strings.Join(s.hidden, ", "))
	}
}

// refuseFixed names all changes that want a restart. It says nothing of their
// values: one is the database's.
func refuseFixed(all []change) error {
	var fixed []string
	for _, c := range all {
		if !c.isLive() {
			fixed = append(fixed, c.name)
		}
	}
	if len(fixed) > 0 {
		return fmt.Errorf("%s: %w", strings.Join(fixed, ", "), errors.New("changes only with a restart"))
	}
	return nil
}
