package files

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// told is what a watch tells, as one line, or the error that ended it.
type told struct {
	text string
	err  error
}

// watch opens a watch. When it returns the watch is in force; the channel is
// closed at its end.
func (b box) watch(ctx context.Context, path string, recursive bool) (<-chan told, error) {
	events := make(chan told, 10_000)
	go func() {
		defer close(events)
		for e, err := range b.c.Files.Watch(ctx, b.id, microvm.WatchFilesParams{Path: path, Recursive: &recursive}) {
			_ = b.spy.saw(e, err)
			text := string(e.Type) + " " + e.Path
			if e.From != "" {
				text += " from " + e.From
			}
			if e.Directory {
				text += "/"
			}
			events <- told{text, err}
		}
	}()
	first := <-events
	if first.err == nil && first.text != string(microvm.FileWatching)+" " {
		first.err = fmt.Errorf("a watch begins with %q", first.text)
	}
	return events, first.err
}

// until takes events up to one that reads as last.
func until(t *testing.T, events <-chan told, last string) (all []string) {
	t.Helper()
	bound := time.After(callBound)
	for {
		select {
		case e, open := <-events:
			if !open {
				t.Fatalf("the watch ended before %q: %q", last, all)
			}
			if e.err != nil {
				t.Fatalf("the watch ended before %q: %v; %q", last, e.err, all)
			}
			if all = append(all, e.text); e.text == last {
				return all
			}
		case <-bound:
			t.Fatalf("no %q came: %q", last, all)
		}
	}
}

func (b box) watches(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := b.mkdir(ctx, "watched/old", 0o755); err != nil {
		t.Fatal(err)
	}
	events, err := b.watch(ctx, "watched", true)
	if err != nil {
		t.Fatal(err)
	}
	flat, err := b.watch(ctx, "/workspace/watched", false)
	if err != nil {
		t.Fatal(err)
	}
	b.run(t, "user", "sh", "-ec", `cd watched
echo a >a; echo b >>a; mv a b
mkdir -p new/sub; echo c >new/sub/c
mv b new/b; mv new/b ../out; mv ../out in
chmod 600 in; rm in
mv old older; echo x >older/x
rm new/sub/c; rmdir new/sub new; rm older/x; rmdir older`)
	steps := []func() error{
		func() error { _, err := b.put(ctx, "watched/f", strings.NewReader("f")); return err },
		func() error { _, err := b.put(ctx, "watched/f", strings.NewReader("over")); return err },
		func() error { _, err := b.add(ctx, "watched/f", 4, strings.NewReader("more")); return err },
		func() error { _, err := b.move(ctx, "watched/f", "watched/g", false); return err },
		func() error {
			_, err := b.batch(ctx, microvm.FileWrite{Path: "watched/g", Content: []byte("g")}, microvm.FileWrite{Path: "watched/h/i", Content: []byte("i")})
			return err
		},
		func() error { _, err := b.remove(ctx, "watched/h", true); return err },
		func() error { _, err := b.remove(ctx, "watched/g", false); return err },
	}
	for i, step := range steps {
		if err := step(); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	want := strings.Split(strings.ReplaceAll(`created W/a
moved W/b from W/a
created W/new/
created W/new/sub/
created W/new/sub/c
moved W/new/b from W/b
removed W/new/b
created W/in
removed W/in
moved W/older from W/old/
created W/older/x
removed W/new/sub/c
removed W/new/sub/
removed W/new/
removed W/older/x
removed W/older/
created W/f
created W/f
moved W/g from W/f
created W/h/
created W/h/i
created W/g
removed W/h/i
removed W/h/
removed W/g`, "W", "/workspace/watched"), "\n")
	all := until(t, events, "removed /workspace/watched/g")
	var changes []string
	modified := map[string]bool{}
	for _, text := range all {
		if path, ok := strings.CutPrefix(text, "modified "); ok {
			modified[path] = true
			continue
		}
		changes = append(changes, text)
	}
	if !sameButForBatch(changes, want) {
		t.Errorf("told:\n%s\nall:\n%s", differ(strings.Join(want, "\n")+"\n", strings.Join(changes, "\n")+"\n"), strings.Join(all, "\n"))
	}
	for _, path := range []string{"a", "in", "f"} {
		if !modified["/workspace/watched/"+path] {
			t.Errorf("no change of %s is told: %q", path, all)
		}
	}
	for _, text := range until(t, flat, "removed /workspace/watched/g") {
		if strings.Count(text, "/workspace/watched/new/") > 0 && !strings.HasSuffix(text, "new/") {
			t.Errorf("a watch of one directory tells %q", text)
		}
	}
	// What is watched goes away.
	if _, err := b.remove(ctx, "watched", true); err != nil {
		t.Fatal(err)
	}
	var end told
	for e := range events {
		end = e
	}
	if !microvm.HasCode(end.err, microvm.ErrorCodeFileNotFound) {
		t.Errorf("the end of a watch: %+v", end)
	}
	for path, code := range map[string]microvm.ErrorCode{"watched": microvm.ErrorCodeFileNotFound, "big": microvm.ErrorCodeParameterInvalid} {
		if _, err := b.watch(ctx, path, false); !microvm.HasCode(err, code) {
			t.Errorf("watch %s: %v", path, err)
		}
	}
	b.eightWatches(t)
}

// sameButForBatch compares what was told; in which order the places of a batch
// appear is its own affair.
func sameButForBatch(got, want []string) bool {
	got, want = slices.Clone(got), slices.Clone(want)
	for _, all := range [][]string{got, want} {
		if at := slices.Index(all, "moved /workspace/watched/g from /workspace/watched/f"); at >= 0 {
			slices.Sort(all[at+1 : min(at+4, len(all))])
		}
	}
	return slices.Equal(got, want)
}

// eightWatches: a sandbox has so many, and gets those back that were closed.
func (b box) eightWatches(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	opened := 0
	for {
		_, err := b.watch(ctx, "/etc", false)
		if err == nil {
			opened++
			continue
		}
		if !microvm.HasCode(err, microvm.ErrorCodeNodeAtCapacity) {
			t.Error(err)
		}
		break
	}
	if opened > 8 || opened < 7 { // the watch before may not have ended in the guest yet
		t.Errorf("%d watches at once", opened)
	}
	cancel()
	again, stop := context.WithTimeout(t.Context(), callBound)
	defer stop()
	for range 8 {
		for {
			_, err := b.watch(again, "/etc", false)
			if err == nil {
				break
			}
			if !microvm.HasCode(err, microvm.ErrorCodeNodeAtCapacity) {
				t.Fatal(fmt.Errorf("a watch in the place of one that was closed: %w", err))
			}
			time.Sleep(50 * time.Millisecond) // between two tries
		}
	}
}
