package main

import (
	"context"
	"errors"
	"net/http"
	"time"

	microvm "github.com/microvmd/microvm/sdk/go"
)

const (
	// copyTries is how often in a row a copy that gets no further is gone on with.
	copyTries = 6
	// longestWait is the longest Retry-After that is waited for.
	longestWait   = 30 * time.Second
	copyLastPause = 5 * time.Second
)

// copyFirstPause is the pause before the first repeat; it doubles. Tests make it short.
var copyFirstPause = 250 * time.Millisecond

// tries bounds how often a copy is gone on with after its connection broke.
type tries struct{ inRow int }

// again waits before the next try, or says that there is none: err is final, or
// too many tries in a row got nothing done.
func (t *tries) again(ctx context.Context, err error, further bool) bool {
	if further {
		t.inRow = 0
	}
	pause, ok := passing(err, copyFirstPause<<t.inRow)
	t.inRow++
	if !ok || ctx.Err() != nil || t.inRow > copyTries {
		return false
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// heldError is a part that was not added, as the try before it, whose connection
// broke, is not over in the guest.
type heldError struct{ error }

func (h *heldError) Unwrap() error { return h.error }

// passing says whether an error may be gone after a while, and after which.
func passing(err error, pause time.Duration) (time.Duration, bool) {
	pause = min(pause, copyLastPause)
	var gone *microvm.ConnectionError
	var held *heldError
	var refused *microvm.Error
	switch {
	case errors.As(err, &gone), errors.As(err, &held):
		return pause, true
	case !errors.As(err, &refused):
		return 0, false
	}
	switch refused.Status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusBadGateway, http.StatusGatewayTimeout:
		pause = max(pause, refused.RetryAfter)
		return pause, pause <= longestWait
	default:
		return 0, false
	}
}
