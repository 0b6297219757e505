package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// watcher is a watch whose changes a test waits for.
type watcher struct {
	t       testing.TB
	changes chan guestwire.Change
	ended   chan error
	end     context.CancelFunc
}

// look begins to watch, and returns once the watch is set up.
func (b *box) look(t testing.TB, path string, recursive bool) *watcher {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	w := &watcher{t: t, changes: make(chan guestwire.Change, 1000), ended: make(chan error, 1), end: end}
	go func() {
		w.ended <- b.Watch(ctx, path, recursive, func(change guestwire.Change) error {
			select {
			case w.changes <- change:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	select {
	case first := <-w.changes:
		if first.Type != guestwire.NoChange || first.Path == "" {
			t.Fatalf("first: %+v", first)
		}
	case err := <-w.ended:
		t.Fatal(err)
	}
	t.Cleanup(end)
	return w
}

// tells waits for changes, in this order; modifications on the way are skipped
// unless they are waited for.
func (w *watcher) tells(want ...string) {
	w.t.Helper()
	for _, text := range want {
		for {
			var change guestwire.Change
			select {
			case change = <-w.changes:
			case err := <-w.ended:
				w.t.Fatalf("it ended before %q: %v", text, err)
			}
			got := fmt.Sprintf("%s %s", change.Type, strings.TrimPrefix(change.Path, "/workspace/"))
			if change.From != "" {
				got += " from " + strings.TrimPrefix(change.From, "/workspace/")
			}
			if change.IsDir {
				got += "/"
			}
			if got == text {
				break
			}
			if change.Type != guestwire.ChangeModified && change.Type != guestwire.NoChange {
				w.t.Fatalf("got %q, want %q", got, text)
			}
		}
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put(t, "d/before", "x")
	b.put(t, "other", "x")
	must(t, os.MkdirAll(b.work("d/sub"), 0o755))
	w := b.look(t, "d", false)
	b.put(t, "d/new\xff", "")
	w.tells("created d/new\xff")
	b.put(t, "d/before", "longer")
	w.tells("modified d/before")
	must(t, os.Chmod(b.work("d/before"), 0o600))
	w.tells("modified d/before")
	must(t, os.Rename(b.work("d/before"), b.work("d/after")))
	w.tells("moved d/after from d/before")
	must(t, os.Rename(b.work("d/after"), b.work("away")))
	w.tells("removed d/after")
	must(t, os.Rename(b.work("away"), b.work("d/back")))
	w.tells("created d/back")
	must(t, os.Remove(b.work("d/back")))
	w.tells("removed d/back")
	must(t, os.Mkdir(b.work("d/dir"), 0o755))
	b.put(t, "d/dir/not told", "")
	b.put(t, "d/sub/not told", "")
	must(t, os.Symlink("x", b.work("d/link")))
	w.tells("created d/dir/", "created d/link")
	// The agent's own writes: one change for a whole file.
	_, err := b.WriteFile(t.Context(), "d/whole", 0o644, strings.NewReader("whole"))
	must(t, err)
	w.tells("created d/whole")
	_, err = b.WriteFiles(t.Context(), newFiles("d/whole", "d/two"))
	must(t, err)
	w.tells("created d/whole", "created d/two")
	_, err = b.AppendFile(t.Context(), "d/whole", 9, 0o644, strings.NewReader("more"))
	must(t, err)
	w.tells("modified d/whole")
	must(t, os.RemoveAll(b.work("d")))
	var last guestwire.Change
	if err := <-w.ended; err != nil {
		t.Errorf("ended with %v", err)
	}
	for len(w.changes) > 0 {
		last = <-w.changes
	}
	if last != (guestwire.Change{Type: guestwire.ChangeRemoved, Path: "/workspace/d", IsDir: true}) {
		t.Errorf("last: %+v", last)
	}
}

func TestWatchRecursive(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put(t, "d/a/b/x", "x")
	b.put(t, "outside/tree/deep/f", "x")
	must(t, os.Symlink("../outside", b.work("d/link")))
	w := b.look(t, "d", true)
	b.put(t, "d/a/b/y", "")
	w.tells("created d/a/b/y")
	must(t, os.MkdirAll(b.work("d/new/er/est"), 0o755))
	w.tells("created d/new/", "created d/new/er/", "created d/new/er/est/")
	b.put(t, "d/new/er/est/f", "")
	w.tells("created d/new/er/est/f")
	// A directory that is moved is followed under its new name.
	must(t, os.Rename(b.work("d/a"), b.work("d/new/er/z")))
	w.tells("moved d/new/er/z from d/a/")
	b.put(t, "d/new/er/z/b/x", "again")
	w.tells("modified d/new/er/z/b/x")
	// One that comes from elsewhere comes with all that it holds.
	must(t, os.Rename(b.work("outside/tree"), b.work("d/tree")))
	w.tells("created d/tree/", "created d/tree/deep/", "created d/tree/deep/f")
	b.put(t, "d/tree/deep/g", "")
	w.tells("created d/tree/deep/g")
	// One that goes elsewhere is not looked at any more.
	must(t, os.Rename(b.work("d/tree"), b.work("outside/tree")))
	w.tells("removed d/tree/")
	b.put(t, "outside/tree/deep/not told", "")
	must(t, os.RemoveAll(b.work("d/new/er/z")))
	w.tells("removed d/new/er/z/b/x", "removed d/new/er/z/b/y", "removed d/new/er/z/b/", "removed d/new/er/z/")
	must(t, os.Rename(b.work("d"), b.work("e")))
	w.tells("removed d/")
	if err := <-w.ended; err != nil {
		t.Errorf("ended with %v", err)
	}
	must(t, b.agent.Close())
	if n := b.agent.watched.Load(); n != 0 {
		t.Errorf("%d directories are still counted", n)
	}
}

// Directories that are made quickly, one in the other, lose nothing that is put
// into them.
func TestWatchLosesNothingInNewDirectories(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	w := b.look(t, ".", true)
	want := map[string]bool{}
	for i := range 40 {
		dir := fmt.Sprintf("d%d/e/f", i)
		b.put(t, dir+"/x", "")
		for name := dir + "/x"; name != "."; name = path.Dir(name) {
			want["/workspace/"+name] = true
		}
	}
	for len(want) > 0 {
		switch change := <-w.changes; change.Type {
		case guestwire.ChangeCreated:
			delete(want, change.Path)
		case guestwire.NoChange, guestwire.ChangeOverflow:
			t.Fatalf("%+v, and not told: %v", change, want)
		}
	}
}

// A watch of which there is nothing to tell gives signs of life.
func TestWatchGivesSignsOfLife(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.agent.quiet = time.Millisecond
	w := b.look(t, ".", true)
	for range 3 {
		if change := <-w.changes; change != (guestwire.Change{}) {
			t.Errorf("got %+v", change)
		}
	}
	b.put(t, "f", "")
	w.tells("created f")
}

func TestWatchRefusals(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put(t, "f", "x")
	none := func(guestwire.Change) error { return nil }
	for path, want := range map[string]guestwire.Code{"none": guestwire.FileNotFound, "f": guestwire.BadDirectory, "": guestwire.BadRequest} {
		if err := b.Watch(t.Context(), path, true, none); !guestwire.Refused(err, want) {
			t.Errorf("%q: %v, want %s", path, err, want)
		}
	}
	var watchers []*watcher
	for range guestwire.MaxWatches {
		watchers = append(watchers, b.look(t, ".", false))
	}
	if err := b.Watch(t.Context(), ".", true, none); !guestwire.Refused(err, guestwire.TooMuch) {
		t.Errorf("too many: %v", err)
	}
	// One that leaves makes room.
	watchers[0].end()
	if err := <-watchers[0].ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	b.agent.watches <- struct{}{}
	<-b.agent.watches
	watchers[0] = b.look(t, ".", false)
	// An error of who listens ends the watch.
	watchers[1].end()
	<-watchers[1].ended
	b.agent.watches <- struct{}{}
	<-b.agent.watches
	stop := errors.New("enough")
	if err := b.Watch(t.Context(), ".", false, func(guestwire.Change) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
	b.agent.watches <- struct{}{}
	<-b.agent.watches
	b.agent.watched.Store(guestwire.MaxWatched)
	if err := b.Watch(t.Context(), ".", false, none); !guestwire.Refused(err, guestwire.TooMuch) {
		t.Errorf("too many directories: %v", err)
	}
	b.agent.watched.Store(guestwire.MaxWatches - 2)
	for i, w := range watchers {
		if i != 1 {
			w.end()
			<-w.ended
		}
	}
}

// A listener that does not keep up is told that it missed something, and hears
// what comes after that, in new directories too.
func TestWatchOverflow(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	must(t, os.Mkdir(b.work("dir"), 0o755))
	limit, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	must(t, err)
	most := 0
	_, err = fmt.Sscan(string(limit), &most)
	must(t, err)
	listen := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready, over := make(chan struct{}), make(chan struct{})
	ended := make(chan error, 1)
	found := make(chan string, 10)
	go func() {
		first, missed := true, false
		ended <- b.Watch(ctx, ".", true, func(change guestwire.Change) error {
			if first {
				first = false
				close(ready)
				<-listen
			}
			if change.Type == guestwire.ChangeOverflow && !missed {
				missed = true
				close(over)
			}
			if strings.HasSuffix(change.Path, "/after") {
				found <- change.Path
			}
			return nil
		})
	}()
	<-ready
	name := b.work("dir/" + strings.Repeat("n", 200))
	for range most/2 + 5000 {
		fd, err := unix.Open(name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o600)
		must(t, err)
		must(t, errors.Join(unix.Close(fd), unix.Unlink(name)))
	}
	must(t, os.MkdirAll(b.work("missed/dir"), 0o755))
	close(listen)
	select {
	case <-over:
	case err := <-ended:
		t.Fatal(err)
	}
	b.put(t, "missed/dir/after", "")
	if path := <-found; path != "/workspace/missed/dir/after" {
		t.Errorf("found %s", path)
	}
	cancel()
	<-ended
}

func FuzzTakeNotice(f *testing.F) {
	event := func(mask uint32, name string) []byte {
		data := binary.NativeEndian.AppendUint32(nil, 7)
		data = binary.NativeEndian.AppendUint32(data, mask)
		data = binary.NativeEndian.AppendUint32(data, 3)
		data = binary.NativeEndian.AppendUint32(data, uint32(len(name)))
		return append(data, name...)
	}
	f.Add(append(event(unix.IN_CREATE, "name\x00\x00\x00"), event(unix.IN_Q_OVERFLOW, "")...))
	f.Add(event(unix.IN_CREATE, "name")[:18])
	f.Add(event(unix.IN_CREATE, "")[:15])
	f.Fuzz(func(t *testing.T, data []byte) {
		for len(data) > 0 {
			n, rest, err := takeNotice(data)
			if err != nil {
				return
			}
			if len(rest) >= len(data) || !bytes.HasSuffix(data, rest) || strings.Contains(n.name, "\x00") {
				t.Fatalf("%+v, %d of %d bytes left", n, len(rest), len(data))
			}
			data = rest
		}
	})
}
