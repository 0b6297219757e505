package execution

import "errors"

// ErrAlreadyFinished is what Store.FinishExecution returns, wrapped, for an
// execution that has ended: the first cause of an ending wins and is kept.
var ErrAlreadyFinished = errors.New("execution has already ended")
