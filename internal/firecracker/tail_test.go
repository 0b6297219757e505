package firecracker

import (
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestTailKeepsTheLastAndCountsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		tail := follow(r, nil)
		_, _ = io.WriteString(w, strings.Repeat("x", tailKeep)+"the end")
		synctest.Wait()
		if text, before := tail.last(7); text != "the end" || before != tailKeep {
			t.Errorf("%q after %d", text, before)
		}
		if text, before := tail.last(1 << 20); len(text) != tailKeep || before != 7 {
			t.Errorf("%d bytes after %d", len(text), before)
		}
		tail.close()
		tail.close()
	})
}

func TestTailRestsUnderAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		tail := follow(r, nil)
		written := 0
		go func() {
			for {
				n, err := w.Write(make([]byte, 1<<10))
				written += n
				if err != nil {
					return
				}
			}
		}()
		time.Sleep(10*tailRest + tailRest/2) // virtual
		synctest.Wait()
		if most := 11*(tailRate+4<<10) + 1<<10; written > most || written < 10*tailRate {
			t.Errorf("%d bytes in ten rests, want at most %d", written, most)
		}
		tail.close() // in the middle of a rest
		_ = w.Close()
	})
}

func TestNoTail(t *testing.T) {
	var none *tail
	none.settle()
	none.close()
	if text, before := none.last(1); text != "" || before != 0 {
		t.Error("nothing said something")
	}
}
