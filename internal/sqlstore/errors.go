package sqlstore

import (
	"fmt"

	"github.com/microvmd/microvm/internal/fault"
)

// outage is all that a caller is told of a database that is away.
const outage = "the daemon's database is away or takes nothing now; repeat after the seconds in Retry-After"

// explain gives an error its verb and noun. What may pass by itself is a fault
// that a caller may repeat.
func (s *Store) explain(op string, err error) error {
	if err == nil {
		return nil
	}
	err, passes := s.describe(op, err)
	if passes {
		return fault.Wrap(err, fault.QueueUnreachable, outage)
	}
	return err
}

// describe turns a driver's error into "verb noun: which database, what to do:
// cause", for the operator. Other errors only get the verb and noun.
func (s *Store) describe(op string, err error) (described error, passes bool) {
	t := s.engine.trouble(err)
	if t.advice == "" {
		return fmt.Errorf("%s: %w", op, err), false
	}
	return fmt.Errorf("%s: %s %s: %w", op, s.name, t.advice, err), t.passes
}
