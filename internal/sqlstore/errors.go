package sqlstore

import (
	"fmt"
)

// explain turns a driver's error into "verb noun: which database, what to do:
// cause". Other errors only get the verb and noun.
func (s *Store) explain(op string, err error) error {
	if err == nil {
		return nil
	}
	t := s.engine.trouble(err)
	if t.advice == "" {
		return fmt.Errorf("%s: %w", op, err)
	}
	return fmt.Errorf("%s: %s %s: %w", op, s.name, t.advice, err)
}
