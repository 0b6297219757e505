package execution_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/testkit"
)

// TestOutputOfWhatRunsIsBounded: what runs counts as it grows. When nothing that
// has ended is left to go, the oldest that runs loses what it has so far, says so
// and keeps what comes.
func TestOutputOfWhatRunsIsBounded(t *testing.T) {
	dir := t.TempDir()
	defer func(before int64) { keep = before }(keep)
	keep = 3 << 20
	f := newFixtureIn(t, dir, testkit.GuestAgent(t.TempDir()))
	gate := filepath.Join(t.TempDir(), "gate")
	loud := func(name string) execution.Execution {
		t.Helper()
		e, err := f.Start(t.Context(), f.sb.ID, sh(fmt.Sprintf(
			"head -c 1500000 /dev/zero | tr '\\0' %s; echo done; until [ -e %s ]; do sleep 0.01; done; echo last", name, gate)))
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, func() bool {
			out, err := f.Output(e)
			return err != nil || out.Stdout.Offset+int64(len(out.Stdout.Bytes)) == 1500005
		})
		return e
	}
	ended := f.run(t, sh("head -c 1500000 /dev/zero; exit 0"))
	first := loud("a")
	early := f.follow(t, first, execution.Position{})
	second := loud("b")
	if out, err := f.Output(ended); err != nil || len(out.Stdout.Bytes) > 0 || out.Stdout.Offset != ended.StdoutBytes {
		t.Errorf("of the one that had ended: %d bytes from %d, %v", len(out.Stdout.Bytes), out.Stdout.Offset, err)
	}
	if out, err := f.Output(first); err != nil || len(out.Stdout.Bytes) != execution.RingBytes {
		t.Errorf("of the first that runs: %d bytes, %v", len(out.Stdout.Bytes), err)
	}
	third := loud("c")
	if disk := onDisk(t, dir); disk > keep+64<<10 {
		t.Errorf("%d bytes on the disk", disk)
	}
	touch(t, gate)
	for i, e := range []execution.Execution{first, second, third} {
		h, err := hear(t.Context(), f.follow(t, e, execution.Position{}), nil)
		if err != nil {
			t.Fatal(err)
		}
		text := h.text[0].String()
		if !strings.HasSuffix(text, "last\n") || h.truncated+int64(len(text)) != 1500010 {
			t.Errorf("%d: %d truncated and %d bytes, ends %q", i, h.truncated, len(text), text[max(0, len(text)-10):])
		}
		if dropped := len(text) == len("last\n"); dropped != (i == 0) {
			t.Errorf("%d: %d bytes are kept", i, len(text))
		}
	}
	if h, err := hear(t.Context(), early, nil); err != nil || h.truncated == 0 {
		t.Errorf("a reader from before: %+v %v", h, err)
	}
}

// onDisk counts what a tree takes.
func onDisk(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		var stat unix.Stat_t
		if err == nil && entry.Type().IsRegular() {
			err = unix.Stat(path, &stat)
			bytes += stat.Blocks * 512
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}
