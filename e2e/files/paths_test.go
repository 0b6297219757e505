package files

import (
	"archive/tar"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/microvmd/microvm/e2e/harness"
	microvm "github.com/microvmd/microvm/sdk/go"
)

//go:embed odd.py
var oddProgram string

//go:embed swap.py
var swapProgram string

//go:embed freeze.py
var freezeProgram string

// TestNoPathLeadsToTheHost is claim 17: whatever root of a guest puts in the way
// of file calls, they reach none of the host's files, and each has an answer
// while calls beside it go through.
func TestNoPathLeadsToTheHost(t *testing.T) {
	d := harness.Start(t, "paths", "--scratch-mib", "128", "--slots", "3")
	b := newBox(t, d, 2) // who swaps does so while a call goes on
	other := newBox(t, d, 1)
	c := newCanary(t, &b)
	c.notices(t, b)
	before := c.manifest(t)
	descriptors := b.descriptors(t)

	t.Run("tricks", func(t *testing.T) { b.tricks(t, c) })
	t.Run("odd files", b.oddFiles)
	t.Run("hostile archives", b.hostileArchives)
	for _, who := range []string{"user", "root"} {
		t.Run("swapped directories of "+who, func(t *testing.T) { b.swapped(t, who) })
	}
	t.Run("a disk that stands still", b.frozen)

	if after := c.manifest(t); after != before {
		t.Errorf("the host has changed:\n%s", differ(before, after))
	}
	if b.spy.seen.Load() {
		t.Error("a file of the host was read")
	}
	for _, one := range []box{b, other} {
		if _, err := one.put(t.Context(), "afterwards", strings.NewReader("well")); err != nil {
			t.Error(err)
		}
		one.holds(t, "afterwards", []byte("well"))
	}
	if after := b.descriptors(t); after > descriptors+8 { // connections come and go
		t.Errorf("the agent had %d descriptors open, and now %d", descriptors, after)
	}
	if _, err := d.Client.Health(t.Context()); err != nil {
		t.Error(err)
	}
	newBox(t, d, 1).run(t, "user", "true")
}

// descriptors is how many the agent's worker has open.
func (b box) descriptors(t *testing.T) int {
	t.Helper()
	out := b.run(t, "root", "sh", "-ec", "for p in $(pgrep -x guestd); do test $p = 1 || ls /proc/$p/fd | wc -l; done")
	n, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// try makes a call that may be refused, but must have an answer in time, which is
// none of a broken daemon.
func (b box) try(t *testing.T, what string, call func(ctx context.Context) error) (code microvm.ErrorCode) {
	ctx, cancel := context.WithTimeout(t.Context(), callBound)
	defer cancel()
	began := time.Now()
	err := call(ctx)
	var refusal *microvm.Error
	switch {
	case err == nil:
		return "none"
	case ctx.Err() != nil:
		t.Errorf("%s: no answer within %s", what, callBound)
	case errors.As(err, &refusal):
		if refusal.Code == microvm.ErrorCodeInternalError || refusal.Code == microvm.ErrorCodeSandboxNotRunning {
			t.Errorf("%s: %v", what, err)
		}
		if refusal.Code == microvm.ErrorCodeGuestUnreachable {
			t.Logf("%s, after %s: %v", what, time.Since(began).Round(time.Millisecond), err)
		}
		return refusal.Code
	case errors.Is(err, io.ErrUnexpectedEOF): // a body that could not be read to its end
		return "cut"
	default:
		t.Errorf("%s: %v", what, err)
	}
	return "failed"
}

// little is a writer that has enough at some time: some files never end.
type little struct{ left int }

var errEnough = errors.New("enough was read")

func (l *little) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		return 0, errEnough
	}
	return len(p), nil
}

func enough(err error) error {
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// sample reads the beginning of a file.
func (b box) sample(ctx context.Context, path string) error {
	reply, err := b.raw(ctx, "files", at(path))
	if err != nil {
		return err
	}
	defer func() { _ = reply.Body.Close() }()
	_, err = io.Copy(&little{1 << 20}, reply.Body)
	return enough(err)
}

// tricks are paths that would be the host's if anybody but the guest followed them.
func (b box) tricks(t *testing.T, c *canary) {
	b.run(t, "root", "sh", "-ec", "mkdir /workspace/tricks; cd /workspace/tricks; ln -s / root; ln -s /proc/1/root old; ln -s ../../../../../../../.. above; ln -s /etc/"+canaryName+" canary")
	var all []string
	for _, place := range c.places {
		for _, way := range []string{
			"", "/proc/1/root", "/proc/self/root", "/proc/self/cwd/../../../../../..", "/proc/1/cwd", "/workspace/tricks/root", "/workspace/tricks/old", "/workspace/tricks/above",
			"../../../../../../../..", "/../../..", "tricks/../../../../..", "/workspace//.././../", "/proc/self/fd/3/../../../..", "/proc/1/ns/../root", "/dev/fd/../..", "/%2e%2e/%2e%2e",
		} {
			all = append(all, way+place)
		}
	}
	all = append(all, "tricks/canary", "/etc/"+canaryName, "file:///etc/"+canaryName, "~root/"+canaryName)
	for _, path := range all {
		calls := map[string]func(context.Context) error{
			"read": func(ctx context.Context) error { _, err := b.read(ctx, path); return err },
			"pack": func(ctx context.Context) error { return b.pack(ctx, path, io.Discard, plain) },
		}
		if path != "tricks/canary" { // which is a link, and there
			calls["stat"] = func(ctx context.Context) error { _, err := b.stat(ctx, path); return err }
			calls["move"] = func(ctx context.Context) error { _, err := b.move(ctx, path, "moved", true); return err }
		}
		for call, do := range calls {
			switch code := b.try(t, call+" "+path, do); {
			case code == microvm.ErrorCodeFileNotFound, code == microvm.ErrorCodeParameterInvalid:
			case code == microvm.ErrorCodeFileConflict && call == "move": // from another file system of the guest
			default:
				t.Errorf("%s %s: %s", call, path, code)
			}
		}
	}
	// What names a file of the host's and is there is the guest's own.
	inside := b.run(t, "root", "cat", "/etc/hostname")
	for _, path := range []string{"/etc/hostname", "../etc/hostname", "tricks/above/etc/hostname", "tricks/root/etc/hostname", "/proc/self/root/etc/hostname"} {
		b.holds(t, path, []byte(inside))
	}
	// Over a link nothing is written: the link is replaced.
	if _, err := b.put(t.Context(), "tricks/canary", strings.NewReader("mine")); err != nil {
		t.Error(err)
	}
	b.holds(t, "tricks/canary", []byte("mine"))
}

// oddFiles makes every call about everything that is no plain file, with others
// that are held beside them.
func (b box) oddFiles(t *testing.T) {
	stop := b.start(t, "root", oddProgram, "/workspace/odd")
	defer stop()
	honest, leave := context.WithCancel(t.Context())
	var beside sync.WaitGroup
	beside.Go(func() { b.goesThrough(t, honest) })
	defer beside.Wait()
	defer leave()

	names := strings.Fields(b.run(t, "root", "ls", "/workspace/odd"))
	var small bytes.Buffer
	w := tar.NewWriter(&small)
	_ = w.WriteHeader(&tar.Header{Name: "member", Mode: 0o644, Size: 1, Typeflag: tar.TypeReg})
	_, _ = w.Write([]byte("x"))
	_ = w.Close() // into memory
	type call struct {
		name string
		do   func(ctx context.Context, path string) error
	}
	looks := []call{
		{"read", b.sample},
		{"range", func(ctx context.Context, path string) error {
			_, _, err := b.get(ctx, path, "Range", "bytes=-10")
			return err
		}},
		{"stat", func(ctx context.Context, path string) error { _, err := b.stat(ctx, path); return err }},
		{"list", func(ctx context.Context, path string) error {
			_, err := b.list(ctx, path, 32, 1000)
			return err
		}},
		{"stat below", func(ctx context.Context, path string) error { _, err := b.stat(ctx, path+"/etc/passwd"); return err }},
		{"pack", func(ctx context.Context, path string) error {
			return enough(b.pack(ctx, path, &little{1 << 20}, plain))
		}},
		{"watch", func(ctx context.Context, path string) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			_, err := b.watch(ctx, path, false)
			return err
		}},
	}
	changes := []call{
		{"add", func(ctx context.Context, path string) error {
			_, err := b.add(ctx, path, 0, strings.NewReader("x"))
			return err
		}},
		{"make a directory", func(ctx context.Context, path string) error { _, err := b.mkdir(ctx, path, 0o755); return err }},
		{"remove one", func(ctx context.Context, path string) error { _, err := b.remove(ctx, path+"/none", false); return err }},
		{"move below", func(ctx context.Context, path string) error {
			_, err := b.move(ctx, "odd/leased", path+"/none/x", false)
			return err
		}},
		{"write below", func(ctx context.Context, path string) error {
			_, err := b.put(ctx, path+"/fdinfo/x", strings.NewReader("x"))
			return err
		}},
		{"unpack", func(ctx context.Context, path string) error {
			if strings.HasSuffix(path, "above") || strings.HasSuffix(path, "root") {
				path += "/tmp"
			}
			_, err := b.unpack(ctx, path, bytes.NewReader(small.Bytes()), plain, user)
			return err
		}},
		{"write", func(ctx context.Context, path string) error {
			_, err := b.put(ctx, path, strings.NewReader("x"))
			return err
		}},
		{"batch", func(ctx context.Context, path string) error {
			_, err := b.batch(ctx, microvm.FileWrite{Path: "odd/made/x", Content: []byte("x")}, microvm.FileWrite{Path: path, Content: []byte("x")})
			return err
		}},
		{"move", func(ctx context.Context, path string) error {
			_, err := b.move(ctx, path, path+" moved", false)
			return err
		}},
		{"remove", func(ctx context.Context, path string) error { _, err := b.remove(ctx, path+" moved", true); return err }},
	}
	seen := make(map[string]int)
	var mu sync.Mutex
	for _, calls := range [][]call{looks, changes} {
		turns := make(chan struct{}, 4)
		var all sync.WaitGroup
		for _, name := range names {
			all.Go(func() {
				turns <- struct{}{}
				defer func() { <-turns }()
				for _, one := range calls {
					code := b.try(t, one.name+" "+name, func(ctx context.Context) error { return one.do(ctx, "odd/"+name) })
					mu.Lock()
					seen[one.name+" "+string(code)]++
					mu.Unlock()
				}
			})
		}
		all.Wait()
	}
	t.Logf("%d files: %v", len(names), seen)
	for _, name := range []string{"read none", "read parameter_invalid", "stat none", "pack none", "write none", "write parameter_invalid", "remove none"} {
		if seen[name] == 0 {
			t.Errorf("no %q in %v", name, seen)
		}
	}
	// The tree that is deeper than a path can be is removed by pieces, and never in part of the rest.
	b.try(t, "remove all", func(ctx context.Context) error { _, err := b.remove(ctx, "odd", true); return err })
	b.run(t, "root", "rm", "-rf", "/workspace/odd")
}

// goesThrough makes calls that nothing stands in the way of.
func (b box) goesThrough(t *testing.T, ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		text := fmt.Sprintf("honest %d", i)
		if _, err := b.put(ctx, "honest/f", strings.NewReader(text)); err != nil && ctx.Err() == nil {
			t.Errorf("an honest write: %v", err)
			return
		}
		if got, err := b.read(ctx, "honest/f"); (err != nil || string(got) != text) && ctx.Err() == nil {
			t.Errorf("an honest read: %q %v", got, err)
			return
		}
	}
}

// hostileArchives are refused at the member that leads out, which is named, and
// what was before it stays inside.
func (b box) hostileArchives(t *testing.T) {
	reg := func(name string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeReg, Size: 4, Mode: 0o644}
	}
	link := func(name, target string) tar.Header {
		return tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeSymlink}
	}
	hard := func(name, target string) tar.Header {
		return tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeLink}
	}
	dir := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o777} }
	b.run(t, "root", "sh", "-ec", "mkdir /outside; echo victim >/outside/victim; chown -R user /outside")
	outside := b.look(t, "/outside")
	for what, bad := range map[string][]tar.Header{
		"absolute":                       {reg("/outside/escaped")},
		"up":                             {reg("../escaped")},
		"up from within":                 {dir("a"), reg("a/../../escaped")},
		"a link out":                     {link("a", "/outside"), reg("a/escaped")},
		"a link up":                      {link("a", "../../outside"), reg("a/escaped")},
		"a link in a link":               {link("a", "b/c"), dir("b"), link("b/c", "../../../outside"), reg("a/escaped")},
		"a link over a directory":        {dir("a"), reg("a/f"), hard("h", "a/f"), link("a2", "/outside"), reg("a2/escaped")},
		"a directory through a link":     {link("a", "/outside"), dir("a/escaped/b")},
		"a link through a link":          {link("a", "/outside"), link("a/escaped", "/etc/passwd")},
		"a hard link out":                {hard("escaped", "/outside/victim")},
		"a hard link up":                 {hard("escaped", "../../outside/victim")},
		"a hard link through a link":     {link("a", "/outside"), hard("escaped", "a/victim")},
		"a hard link to a directory":     {dir("a"), hard("escaped", "a")},
		"a FIFO":                         {{Name: "escaped", Typeflag: tar.TypeFifo}},
		"a device":                       {{Name: "escaped", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 5}},
		"a disk":                         {{Name: "escaped", Typeflag: tar.TypeBlock, Devmajor: 254}},
		"proc":                           {link("a", "/proc/self/cwd"), reg("a/escaped")},
		"the directory itself as a file": {reg(".")},
		"the directory itself as a link": {link("./", "/outside")},
	} {
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		for _, head := range append([]tar.Header{reg("before")}, bad...) {
			head.Format = tar.FormatPAX
			if err := w.WriteHeader(&head); err != nil {
				t.Fatal(err)
			}
			_, _ = w.Write([]byte("text")[:head.Size])
		}
		_ = w.Close() // into memory
		for _, owners := range []microvm.WriteArchiveParamsOwners{user, keep} {
			_, err := b.unpack(t.Context(), "unpacked/here", bytes.NewReader(archive.Bytes()), plain, owners)
			var refusal *microvm.Error
			last := bad[len(bad)-1]
			if !errors.As(err, &refusal) || refusal.Code != microvm.ErrorCodeParameterInvalid || !strings.Contains(refusal.Message, strings.TrimSuffix(last.Name, "/")) {
				t.Errorf("an archive with %s: %v", what, err)
			}
			b.holds(t, "unpacked/here/before", []byte("text"))
			if _, err := b.remove(t.Context(), "unpacked/here", true); err != nil {
				t.Error(err)
			}
		}
	}
	if got := b.look(t, "/outside"); got != outside {
		t.Errorf("outside of it:\n%s", differ(outside, got))
	}
	if left := b.run(t, "root", "find", "/", "-xdev", "-name", "escaped*"); left != "" {
		t.Errorf("unpacked: %s", left)
	}
	// A link that leads out is itself unpacked, and a list or an archive does not follow it.
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	head := link("out", "/outside")
	_ = w.WriteHeader(&head)
	_ = w.Close() // into memory
	if _, err := b.unpack(t.Context(), "unpacked", &archive, plain, user); err != nil {
		t.Error(err)
	}
	if all, err := b.all(t.Context(), "unpacked", 5, 100, ""); err != nil || len(all) != 1 || *all[0].Target != "/outside" {
		t.Errorf("%+v %v", all, err)
	}
	if gone, err := b.remove(t.Context(), "unpacked", true); err != nil || gone.Entries != 2 {
		t.Errorf("%+v %v", gone, err)
	}
	if got := b.look(t, "/outside"); got != outside {
		t.Errorf("outside of it, after a removal:\n%s", differ(outside, got))
	}
}

// swapped makes calls in a directory in which a program exchanges directories for
// links that lead elsewhere.
func (b box) swapped(t *testing.T, who string) {
	arena := "arena-of-" + who
	b.run(t, "user", "mkdir", arena)
	victim := b.run(t, "root", "sha256sum", "/outside/victim", "/etc/passwd", "/etc/hostname")
	stop := b.start(t, who, swapProgram, "/workspace/"+arena)
	honest, leave := context.WithCancel(t.Context())
	var beside sync.WaitGroup
	beside.Go(func() { b.goesThrough(t, honest) })

	seen := make(map[string]int)
	try := func(what string, call func(context.Context) error) {
		seen[what+" "+string(b.try(t, what, call))]++
	}
	for i := range 20 {
		mark := fmt.Sprintf("%s-%d", who, i)
		try("write", func(ctx context.Context) error {
			_, err := b.put(ctx, arena+"/d/written-"+mark, strings.NewReader("written"))
			return err
		})
		try("batch", func(ctx context.Context) error {
			_, err := b.batch(ctx, microvm.FileWrite{Path: arena + "/d/written-" + mark, Content: []byte("1")}, microvm.FileWrite{Path: arena + "/d/sub/new/written-" + mark, Content: []byte("2")})
			return err
		})
		try("unpack", func(ctx context.Context) error {
			var archive bytes.Buffer
			w := tar.NewWriter(&archive)
			for n := range 20 {
				_ = w.WriteHeader(&tar.Header{Name: fmt.Sprintf("d/member-%s-%d", mark, n), Typeflag: tar.TypeReg, Size: 6, Mode: 0o644})
				_, _ = w.Write([]byte("member"))
				_ = w.WriteHeader(&tar.Header{Name: fmt.Sprintf("d/sub/member-%s-%d/", mark, n), Typeflag: tar.TypeDir, Mode: 0o755})
			}
			_ = w.Close() // into memory
			_, err := b.unpack(ctx, arena, &archive, plain, []microvm.WriteArchiveParamsOwners{user, keep}[i%2])
			return err
		})
		try("list", func(ctx context.Context) error {
			all, err := b.all(ctx, arena, 8, 1000, "")
			for _, file := range all {
				if strings.HasSuffix(file.Path, "/victim") || strings.HasSuffix(file.Path, "/passwd") {
					t.Errorf("a list went through a link: %s", file.Path)
				}
			}
			return err
		})
		try("pack", func(ctx context.Context) error {
			var archive bytes.Buffer
			err := b.pack(ctx, arena, &archive, plain)
			if bytes.Contains(archive.Bytes(), []byte("victim")) || bytes.Contains(archive.Bytes(), []byte("root:x:0")) {
				t.Error("an archive went through a link")
			}
			return err
		})
		try("remove", func(ctx context.Context) error {
			_, err := b.remove(ctx, arena+"/"+[]string{"d", "l"}[i%2], true)
			return err
		})
		try("move", func(ctx context.Context) error { _, err := b.move(ctx, arena+"/d", arena+"/moved", true); return err })
		try("remove what was moved", func(ctx context.Context) error { _, err := b.remove(ctx, arena+"/moved", true); return err })
	}
	leave()
	beside.Wait()
	swaps := strings.Fields(stop().Stdout)
	t.Logf("%s exchanges; %v", swaps[len(swaps)-1], seen)
	for _, what := range []string{"write none", "unpack parameter_invalid", "list none", "pack none", "remove none"} {
		if seen[what] == 0 {
			t.Errorf("no %q: the race is not run: %v", what, seen)
		}
	}
	if got := b.run(t, "root", "sha256sum", "/outside/victim", "/etc/passwd", "/etc/hostname"); got != victim {
		t.Errorf("what links led to was changed:\n%s", differ(victim, got))
	}
	left := b.run(t, "root", "sh", "-c", "find / -name proc -prune -o -name sys -prune -o -name 'member-*' -print | grep -v '^/workspace/"+arena+"/'; true")
	if left != "" {
		t.Errorf("unpacked elsewhere: %s", left)
	}
	b.noHalves(t)
	if _, err := b.remove(t.Context(), arena, true); err != nil {
		t.Error(err)
	}
}

// frozen holds still all that writes to the guest's disk: those calls end in their
// time, and calls that need no disk go through. What hung may still be done when the
// disk goes on, whole.
func (b box) frozen(t *testing.T) {
	for _, path := range []string{"frozen/f", "frozen/log", "/dev/shm/f"} {
		if _, err := b.put(t.Context(), path, strings.NewReader("before")); err != nil {
			t.Fatal(err)
		}
	}
	b.start(t, "root", freezeProgram)
	ctx, cancel := context.WithTimeout(t.Context(), callBound)
	defer cancel()
	var all sync.WaitGroup
	for what, call := range map[string]func() error{
		"write":            func() error { _, err := b.put(ctx, "frozen/f", strings.NewReader("hung")); return err },
		"append":           func() error { _, err := b.add(ctx, "frozen/log", 6, strings.NewReader("hung")); return err },
		"make a directory": func() error { _, err := b.mkdir(ctx, "frozen/dir", 0o755); return err },
	} {
		all.Go(func() {
			if err := call(); !microvm.HasCode(err, microvm.ErrorCodeGuestUnreachable) {
				t.Errorf("%s, on a disk that stands still: %v", what, err)
			}
		})
	}
	// A batch gives signs of life for as long as it takes, so its caller leaves.
	leaving, leave := context.WithCancel(ctx)
	all.Go(func() {
		if _, err := b.batch(leaving, microvm.FileWrite{Path: "frozen/g", Content: []byte("hung")}); !errors.Is(err, context.Canceled) {
			t.Errorf("a batch on a disk that stands still: %v", err)
		}
	})
	for i := range 20 { // beside them
		text := fmt.Sprintf("honest %d", i)
		if _, err := b.put(t.Context(), "/dev/shm/f", strings.NewReader(text)); err != nil {
			t.Error(err)
		}
		b.holds(t, "/dev/shm/f", []byte(text))
		b.holds(t, "frozen/f", []byte("before"))
	}
	leave()
	all.Wait()
	if _, err := b.put(t.Context(), "/dev/shm/thaw", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := b.put(t.Context(), "frozen/after", strings.NewReader("after")); err != nil {
		t.Error(err)
	}
	for path, wants := range map[string][]string{"frozen/f": {"before", "hung"}, "frozen/log": {"before", "beforehung"}, "frozen/g": {"", "hung"}} {
		got, err := b.read(t.Context(), path)
		if err != nil && !microvm.HasCode(err, microvm.ErrorCodeFileNotFound) || !slices.Contains(wants, string(got)) {
			t.Errorf("%s is %q: %v", path, got, err)
		}
	}
	b.noHalves(t)
}

// noHalves waits until nothing of a file that is being written is in the guest:
// what the daemon gave up the guest learns of a moment later.
func (b box) noHalves(t *testing.T) {
	t.Helper()
	b.run(t, "root", "sh", "-c", "for i in $(seq 600); do test -z \"$(find / -xdev -name '.write-*')\" && exit; sleep 0.1; done; find / -xdev -name '.write-*'; exit 1")
}
