package files

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// reader reads argv[1] again and again and says when it is none of two wholes.
const reader = `
import sys
print("ready", flush=True)
seen = set()
while True:
    text = open(sys.argv[1], "rb").read()
    first = text[:1]
    if len(text) != {b"o": 100000, b"a": 300000, b"b": 200000}.get(first) or text != first * len(text):
        print("a mixture:", len(text), text[:20], flush=True)
    if first not in seen:
        seen.add(first)
        print("saw", first.decode(), flush=True)
`

func (b box) twoWriters(t *testing.T) {
	ctx := t.Context()
	whole := func(letter string, size int) []byte { return bytes.Repeat([]byte(letter), size) }
	old, first, second := whole("o", 100_000), whole("a", 300_000), whole("b", 200_000)
	if _, err := b.put(ctx, "writers/f", bytes.NewReader(old)); err != nil {
		t.Fatal(err)
	}
	stop := b.start(t, "user", reader, "writers/f")

	// The first writer begins, the second one is whole before it: the first is last.
	slow := func(path string, half io.Reader) (finish func(error) error) {
		pipe, into := io.Pipe()
		done := make(chan error, 1)
		go func() {
			_, err := b.put(ctx, path, pipe)
			_ = pipe.CloseWithError(io.ErrClosedPipe)
			done <- err
		}()
		if _, err := io.Copy(into, half); err != nil {
			t.Fatal(err)
		}
		return func(end error) error { _ = into.CloseWithError(end); return <-done }
	}
	finish := slow("writers/f", bytes.NewReader(first))
	b.holds(t, "writers/f", old)
	if _, err := b.put(ctx, "writers/f", bytes.NewReader(second)); err != nil {
		t.Error(err)
	}
	b.holds(t, "writers/f", second)
	if err := finish(nil); err != nil {
		t.Error(err)
	}
	b.holds(t, "writers/f", first)

	// One that breaks off leaves nothing, and what is there.
	if err := slow("writers/f", bytes.NewReader(second))(errors.New("the caller broke")); err == nil {
		t.Error("a body that broke off was taken")
	}
	b.settles(t, "writers", []string{"f"})
	b.holds(t, "writers/f", first)

	// Many at once, of every kind.
	var all sync.WaitGroup
	for round := range 6 {
		for _, text := range [][]byte{first, second} {
			all.Go(func() {
				var err error
				if round%2 == 0 {
					_, err = b.put(ctx, "writers/f", bytes.NewReader(text))
				} else {
					_, err = b.batch(ctx, microvm.FileWrite{Path: "writers/f", Content: text}, microvm.FileWrite{Path: "writers/g", Content: text})
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		got, err := b.read(ctx, "writers/f")
		if err != nil || !bytes.Equal(got, first) && !bytes.Equal(got, second) {
			t.Errorf("round %d: %d bytes %.20q %v", round, len(got), got, err)
		}
	}
	if seen := stop(); !strings.HasPrefix(seen.Stdout, "ready\nsaw ") || strings.Contains(seen.Stdout, "mixture") || seen.Stderr != "" {
		t.Errorf("the guest saw: %q %q", seen.Stdout, seen.Stderr)
	}
	b.settles(t, "writers", []string{"f", "g"})

	// Two that add behind the same byte: one does, and the other is told.
	if _, err := b.put(ctx, "writers/log", strings.NewReader("base")); err != nil {
		t.Fatal(err)
	}
	for size := int64(4); size < 34; size += 10 {
		won := make(chan string, 2)
		for _, text := range []string{"0123456789", "abcdefghij"} {
			all.Go(func() {
				switch _, err := b.add(ctx, "writers/log", size, strings.NewReader(text)); {
				case err == nil:
					won <- text
				case !microvm.HasCode(err, microvm.ErrorCodeFileConflict):
					t.Error(err)
				}
			})
		}
		all.Wait()
		got, err := b.read(ctx, "writers/log")
		if err != nil || len(won) != 1 || string(got[size:]) != <-won {
			t.Fatalf("%q %v", got, err)
		}
	}
}
