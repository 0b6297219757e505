package sandbox_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
)

// slowReader gives a byte after so long.
type slowReader struct {
	every time.Duration
	left  int
}

func (s *slowReader) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	time.Sleep(s.every)
	s.left--
	p[0] = 'x'
	return 1, nil
}

// TestASlowCallerIsNoSlowGuest: how long a caller takes to send and to read has
// bounds of its own, which are none of the guest's.
func TestASlowCallerIsNoSlowGuest(t *testing.T) {
	slow := 3 * limits.StepTimeout
	synctest.Test(t, func(t *testing.T) {
		agent := &fileAgent{answer: func(w http.ResponseWriter, r *http.Request) {
			n, _ := io.Copy(io.Discard, r.Body)
			entry := entryOf("/x")
			entry.Size = n
			answerJSON(t, entry)(w, r)
		}}
		files, _, id := withFiles(t, agent.factory())
		if entry, err := files.Write(t.Context(), id, "/x", 0o644, &slowReader{slow, 4}); err != nil || entry.Size != 4 {
			t.Errorf("a slow sender: %+v %v", entry, err)
		}
		agent.answer = func(w http.ResponseWriter, _ *http.Request) {
			for range 4 {
				_, _ = fmt.Fprint(w, "x")
				_ = http.NewResponseController(w).Flush()
			}
		}
		body, err := files.ReadArchive(t.Context(), id, "x", false, "")
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		got := 0
		for buffer := make([]byte, 1); ; {
			time.Sleep(slow)
			n, err := body.Read(buffer)
			got += n
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal("a slow reader:", err)
			}
		}
		if got != 4 {
			t.Errorf("%d bytes came", got)
		}
	})
}

// TestABodyThatStandsStillEnds, however much of it has come.
func TestABodyThatStandsStillEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := &fileAgent{answer: func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprint(w, "some")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}}
		files, _, id := withFiles(t, agent.factory())
		body, err := files.ReadArchive(t.Context(), id, "x", false, "")
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		began := time.Now()
		text, err := io.ReadAll(body)
		if string(text) != "some" || !fault.Is(err, fault.GuestUnreachable) || time.Since(began) != limits.StepTimeout {
			t.Errorf("%q, %v after %s", text, err, time.Since(began))
		}
	})
}

// TestSignsOfLifeCount: work that is long is waited for as long as the guest says
// that it goes on, and no longer.
func TestSignsOfLifeCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const signs = 20
		every := limits.StepTimeout - time.Second
		agent := &fileAgent{answer: func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			for range signs {
				time.Sleep(every)
				_, _ = fmt.Fprint(w, " ")
				_ = http.NewResponseController(w).Flush()
			}
			if r.URL.Query().Get("path") == "hangs" {
				<-r.Context().Done()
			}
			_, _ = fmt.Fprint(w, `{"entries":7}`)
		}}
		files, _, id := withFiles(t, agent.factory())
		began := time.Now()
		if removed, err := files.Remove(t.Context(), id, "x", true); err != nil || removed.Entries != 7 || time.Since(began) != signs*every {
			t.Errorf("%+v %v after %s", removed, err, time.Since(began))
		}
		began = time.Now()
		if _, err := files.Remove(t.Context(), id, "hangs", true); !fault.Is(err, fault.GuestUnreachable) || time.Since(began) != signs*every+limits.StepTimeout {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// TestWatchTellsChanges in order, waits for its caller, and ends with an error of
// it, with what it watches, and with a guest that says nothing.
func TestWatchTellsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := &fileAgent{answer: func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprintf(w, "{\"path\":\"L3g=\"}\n\n{\"type\":\"created\",\"path\":\"L3gvYQ==\"}\n")
			_ = http.NewResponseController(w).Flush()
			if r.URL.Query().Get("recursive") == "true" { // is silent from here on
				<-r.Context().Done()
			}
		}}
		files, _, id := withFiles(t, agent.factory())
		var types []guestwire.ChangeType
		each := func(c guestwire.Change) error {
			time.Sleep(3 * limits.StepTimeout) // a slow caller
			types = append(types, c.Type)
			return nil
		}
		if err := files.Watch(t.Context(), id, "/x", false, each); !fault.Is(err, fault.FileNotFound) {
			t.Errorf("what is watched has gone: %v", err)
		}
		if len(types) != 3 || types[0] != guestwire.NoChange || types[2] != guestwire.ChangeCreated {
			t.Errorf("told %q", types)
		}
		broken := errors.New("the caller went away")
		if err := files.Watch(t.Context(), id, "/x", false, func(guestwire.Change) error { return broken }); !errors.Is(err, broken) {
			t.Errorf("the caller failed: %v", err)
		}
		began := time.Now()
		err := files.Watch(t.Context(), id, "/x", true, func(guestwire.Change) error { return nil })
		if !fault.Is(err, fault.GuestUnreachable) || time.Since(began) != limits.StepTimeout {
			t.Errorf("the guest is silent: %v after %s", err, time.Since(began))
		}
	})
}
