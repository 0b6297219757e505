package guest

import (
	"context"
	"errors"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
)

// late answers with what work returns, and as long as it takes with signs of
// life. The context ends when nobody is there for the answer any more.
func (a *Agent) late(w *reply, work func(context.Context) (any, error)) error {
	ctx, cancel := context.WithCancel(a.life)
	defer cancel()
	quiet := make(chan struct{})
	go func() {
		defer close(quiet)
		ticker := time.NewTicker(a.signs)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if !w.begun {
				w.header(200, "application/json", -1)
			}
			_, _ = w.Write([]byte{' '})
			if w.flush() != nil {
				cancel()
				return
			}
		}
	}()
	value, err := work(ctx)
	cancel()
	<-quiet // the reply is this goroutine's again
	if w.begun && err != nil {
		var refusal *guestwire.Error
		if !errors.As(err, &refusal) {
			refusal = refuse(guestwire.Failed, err.Error())
		}
		value, err = refusal, nil
	}
	if err != nil {
		return err
	}
	if !w.begun {
		w.json(value)
		return nil
	}
	data, err := encode(value)
	if err == nil {
		_, err = w.Write(data)
	}
	return err
}
