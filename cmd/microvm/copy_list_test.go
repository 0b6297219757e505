package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// TestDeepTreesAreComparedToTheirEnd: lists have pages, and a depth.
func TestDeepTreesAreComparedToTheirEnd(t *testing.T) {
	r := newCopyRig(t)
	r.page = 3
	from := t.TempDir()
	makeSamples(t, from)
	deep := filepath.Join(from, strings.Repeat("d/", 2*listDepth+3))
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	for dir := deep; dir != from; dir = filepath.Dir(dir) {
		if err := os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := r.in(t.Context(), t, from)
	if err != nil || c.first.files != 9+2*listDepth+3 {
		t.Fatalf("%v, %d files were sent", err, c.first.files)
	}
	requests := r.requests("PUT archive")
	c, err = r.in(t.Context(), t, from)
	if err != nil || c.first.files != 0 || c.first.same != 9+2*listDepth+3 || r.requests("PUT archive") != requests {
		t.Fatalf("%v, %d files were sent, %d were there", err, c.first.files, c.first.same)
	}
}

// TestOnlyWhatChangedComesOut: an archive is asked for where something is missing,
// and not over long parts that are here.
func TestOnlyWhatChangedComesOut(t *testing.T) {
	r := newCopyRig(t)
	largeFile = 1 << 30
	r.putSamples()
	big := strings.Repeat("b", gapBytes+1)
	r.lay(r.remote.sandbox, "/workspace/from/b/big", &fakeFile{kind: microvm.FileTypeFile, content: []byte(big), mode: "0600", modified: sampleTime})
	to := t.TempDir()
	if _, err := r.out(t.Context(), t, to); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a-b", "z/more"} {
		if err := os.Remove(filepath.Join(to, name)); err != nil {
			t.Fatal(err)
		}
	}
	before := r.requests("GET archive")
	c, err := r.out(t.Context(), t, to)
	files, bytes := c.into.meter.moved()
	if err != nil || files != 2 || bytes != 2000 || r.requests("GET archive")-before != 2 || c.same != 8 {
		t.Fatalf("%v; %d files, %d bytes, %d requests, %d unchanged", err, files, bytes, r.requests("GET archive")-before, c.same)
	}
	if c, err = r.out(t.Context(), t, to); err != nil || c.same != 10 || r.requests("GET archive")-before != 2 {
		t.Fatalf("%v; %d unchanged", err, c.same)
	}
}

// TestOwnersAreKeptWhereAsked: both ways, and the next copy compares them. Tests
// run as root.
func TestOwnersAreKeptWhereAsked(t *testing.T) {
	r := newCopyRig(t)
	from, to := t.TempDir(), t.TempDir()
	makeSamples(t, from)
	for _, name := range []string{"empty", "large", "a", "link"} {
		if err := os.Lchown(filepath.Join(from, name), 1234, 0); err != nil {
			t.Fatal(err)
		}
	}
	all, err := scan(t.Context(), from, nil)
	if err != nil {
		t.Fatal(err)
	}
	in := func() *plan {
		c := &copyIn{remote: r.remote, tree: all, dir: "/workspace/from", owners: true, meter: new(meter), record: openRecord("x"), warn: r.warn}
		if err := c.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		return c.first
	}
	if first, second := in(), in(); first.files != 9 || second.files != 0 {
		t.Fatalf("%d and then %d files were sent", first.files, second.files)
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	out := &copyOut{remote: r.remote, from: "/workspace/from", warn: r.warn, into: &extraction{root: root, top: true, owners: true, meter: new(meter)}}
	if err := out.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"empty": 1234, "large": 1234, "a": 1234, "link": 1234, "a-b": 0, "z": 0} {
		info, err := root.Lstat(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := localEntry(info, name, "").uid; got != want {
			t.Errorf("%s belongs to %d, want %d", name, got, want)
		}
	}
}

// TestProgressOfACopy: nothing for two seconds, then what there is to know.
func TestProgressOfACopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		p := &progress{out: &out, show: true}
		m := &meter{what: "src"}
		done := p.follow(m.line)
		m.plan(3, 10<<20)
		m.do("sending %s", clean("a\x1b"))
		m.add(1 << 20)
		m.addFile()
		time.Sleep(2100 * time.Millisecond) // the bubble's clock
		m.add(5 << 20)
		time.Sleep(10 * time.Second)
		done()
		want := "src: 1.0 MiB of 10.0 MiB, 1 of 3 files, 512.0 KiB/s; sending a\\u001b (2 s)\n" +
			"src: 6.0 MiB of 10.0 MiB, 1 of 3 files, 512.0 KiB/s; sending a\\u001b (12 s)\n"
		if out.String() != want {
			t.Fatalf("said %q, want %q", out.String(), want)
		}
	})
	m := &meter{what: "src"}
	m.add(3)
	m.addFile()
	if got := m.line(2 * time.Second); got != "src: 3 B, 1 file, 1 B/s;  (2 s)" {
		t.Errorf("without a plan it says %q", got)
	}
}

func TestAmountsOfBytes(t *testing.T) {
	for text, want := range map[string]byteSize{"1": 1, "64m": 64 << 20, "2G": 2 << 30, "3k": 3 << 10, "1t": 1 << 40, "none": 0} {
		var b byteSize
		if err := b.Set(text); err != nil || b != want {
			t.Errorf("%s is %d, %v", text, b, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "1.5g", "m", "1mm", "9999999999t", "9223372036854775808"} {
		if b := byteSize(7); b.Set(text) == nil || b != 7 {
			t.Errorf("%q is %d", text, b)
		}
	}
	for b, want := range map[byteSize]string{0: "none", 16 << 30: "16g", 64 << 20: "64m", 1000: "1000"} {
		if b.String() != want {
			t.Errorf("%d is shown as %s", b, b.String())
		}
	}
}
