package bench

import (
	"errors"
	"fmt"
	"slices"
)

// undo is a stack of what must be taken back. One goroutine uses it.
type undo struct{ steps []undoStep }

type undoStep struct {
	name string
	do   func() error
}

// add puts a step on top. It is written beside what it takes back.
func (u *undo) add(name string, do func() error) {
	u.steps = append(u.steps, undoStep{name, do})
}

// run takes everything back, the last first, and joins the errors.
func (u *undo) run() error {
	var all []error
	for _, step := range slices.Backward(u.steps) {
		if err := step.do(); err != nil {
			all = append(all, fmt.Errorf("%s: %w", step.name, err))
		}
	}
	u.steps = nil
	return errors.Join(all...)
}
