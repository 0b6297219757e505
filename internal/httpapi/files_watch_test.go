package httpapi

import (
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/httpapi/gen"
)

const watchPath = filesPath + "/watch?path=src"

// TestWatchOnTheWire is a watch byte by byte, and what its header says.
func TestWatchOnTheWire(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		got := b.get(t, watchPath+"&recursive=true")
		defer got.Body.Close()
		for name, want := range map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"} {
			if got.Header.Get(name) != want {
				t.Errorf("%s %q", name, got.Header.Get(name))
			}
		}
		if f := &b.world.files; f.path != "src" || !f.recursive {
			t.Errorf("asked for %+v", f)
		}
		go func() {
			for _, change := range []guestwire.Change{
				{Type: guestwire.ChangeCreated, Path: "/workspace/src/a.tmp"},
				{Type: guestwire.ChangeMoved, Path: "/workspace/src/a", From: "/workspace/src/a.tmp"},
				{Type: guestwire.NoChange},
				{Type: guestwire.ChangeModified, Path: "/workspace/src/\xff\n"},
				{Type: guestwire.ChangeRemoved, Path: "/workspace/src/d", IsDir: true},
				{Type: guestwire.ChangeOverflow},
			} {
				b.world.files.changes <- change
			}
			b.world.files.over <- fault.New(fault.SandboxNotRunning, "it has stopped")
		}()
		const want = `event: created
data: {"directory":false,"from":null,"from_base64":null,"path":"/workspace/src/a.tmp","path_base64":null}

event: moved
data: {"directory":false,"from":"/workspace/src/a.tmp","from_base64":null,"path":"/workspace/src/a","path_base64":null}

: still here

event: modified
data: {"directory":false,"from":null,"from_base64":null,"path":"/workspace/src/` + "\uFFFD" + `\n","path_base64":"L3dvcmtzcGFjZS9zcmMv/wo="}

event: removed
data: {"directory":true,"from":null,"from_base64":null,"path":"/workspace/src/d","path_base64":null}

event: overflow
data: {"message":"changes were missed; list the directory to see what is there now"}

event: error
data: {"code":"sandbox_not_running","message":"it has stopped"}

`
		if text, err := io.ReadAll(got.Body); err != nil || string(text) != want {
			t.Errorf("%v, the watch is\n%s, want\n%s", err, text, want)
		}
	})
}

// TestWatchThatIsRefused is an error as of any other route: its header is not
// written before the watch is in force.
func TestWatchThatIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		for _, code := range []fault.Code{fault.FileNotFound, fault.NodeAtCapacity, fault.SandboxNotRunning} {
			b.world.err = fault.New(code, "no")
			got := b.get(t, watchPath)
			if detail := refusal(t, got); fault.Code(detail.Code) != code {
				t.Errorf("%d %+v", got.StatusCode, detail)
			}
		}
	})
}

// TestWatchEndsWithItsReader: one that has gone, at once; one that takes nothing,
// after a bound; nothing of either stays.
func TestWatchEndsWithItsReader(t *testing.T) {
	t.Run("gone", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bubble) {
			got := b.get(t, watchPath)
			b.ended(t, func() { got.Body.Close() }, 0)
		})
	})
	t.Run("takes nothing", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bubble) {
			conn := b.dial()
			defer conn.Close()
			if _, err := io.WriteString(conn, request("GET", watchPath, "")); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Read(make([]byte, 4<<10)); err != nil { // the header
				t.Fatal(err)
			}
			b.ended(t, func() {
				b.world.files.changes <- guestwire.Change{Type: guestwire.ChangeCreated, Path: "/" + strings.Repeat("x", 4000)}
			}, writeStall)
		})
	})
}

// TestWatchThatPanics ends alone, and its cause is not sent.
func TestWatchThatPanics(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		got := b.get(t, watchPath)
		defer got.Body.Close()
		b.world.files.over <- nil
		if text, err := io.ReadAll(got.Body); err == nil || strings.Contains(string(text), "secret") {
			t.Errorf("a watch that panicked seems whole: %q", text)
		}
		if !strings.Contains(b.log.String(), "secret of a panic") {
			t.Error("the cause was not logged")
		}
		again := b.get(t, watchPath)
		again.Body.Close()
		if again.StatusCode != 200 {
			t.Errorf("another watch: %d", again.StatusCode)
		}
	})
}

// TestShutdownEndsWatches: a server that stops waits for no change.
func TestShutdownEndsWatches(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		got := b.get(t, watchPath)
		defer got.Body.Close()
		began := time.Now()
		var stopping sync.WaitGroup
		stopping.Go(func() {
			if err := b.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
		})
		events := readEvents(got.Body)
		event, err := events.next()
		if err != nil || event.name != "error" {
			t.Fatalf("%+v %v", event, err)
		}
		var wire gen.FileWatchError
		if event.decode(t, &wire); wire.Code != gen.ErrorCodeShuttingDown || !strings.Contains(wire.Message, "watch again and then list") {
			t.Errorf("%+v", wire)
		}
		if _, err := events.next(); !errors.Is(err, io.EOF) {
			t.Errorf("the watch goes on: %v", err)
		}
		stopping.Wait()
		if took := time.Since(began); took > time.Second { // net/http looks now and then
			t.Errorf("it took %s", took)
		}
	})
}

// TestWatchSaysThatItIsThere: each sign of life of the guest reaches the caller.
func TestWatchSaysThatItIsThere(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		got := b.get(t, watchPath)
		defer got.Body.Close()
		events := readEvents(got.Body)
		for range 3 {
			go func() { b.world.files.changes <- guestwire.Change{} }()
			if event, err := events.next(); err != nil || event.comment == "" || event.name != "" {
				t.Fatalf("%+v %v", event, err)
			}
		}
		synctest.Wait()
	})
}
