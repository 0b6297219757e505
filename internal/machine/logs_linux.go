package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"
)

// followPoll is how often a followed console is read again; the file may be moved aside at any time.
const followPoll = 300 * time.Millisecond

// Console writes what the host's console log holds, and with follow what comes, until ctx ends or the machine does. The
// log outlives the run, and is bounded: its beginning may be gone.
func (m *Machine) Console(ctx context.Context, w io.Writer, follow bool) error {
	old, err := os.Open(m.path(serialFile + ".1"))
	if err == nil {
		_, err = io.Copy(w, old)
		err = errors.Join(err, old.Close())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read console: %w", err)
	}
	f, err := os.Open(m.path(serialFile))
	if err != nil {
		return fmt.Errorf("read console of machine %s: %w", m.cfg.Name, err)
	}
	defer func() { f.Close() }()
	for {
		alive := m.alive() // before the last read, so that nothing is missed
		if _, err := io.Copy(w, f); err != nil {
			return fmt.Errorf("read console: %w", err)
		}
		if !follow || !alive {
			return nil
		}
		if next, err := os.Open(m.path(serialFile)); err == nil {
			now, err1 := next.Stat()
			was, err2 := f.Stat()
			if err1 == nil && err2 == nil && !os.SameFile(now, was) {
				f.Close()
				f = next
				continue
			}
			next.Close()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followPoll):
		}
	}
}

// Journal writes the daemon's journal in the host: its last lines, and with follow what comes until ctx ends.
func (m *Machine) Journal(ctx context.Context, stdout, stderr io.Writer, lines int, follow bool) error {
	words := []string{"journalctl", "-u", "microvmd", "--no-pager", "-o", "short-iso", "-n", strconv.Itoa(lines)}
	if follow {
		words = append(words, "-f")
	}
	code, err := m.Shell(ctx, false, nil, stdout, stderr, words...)
	if err == nil && code != 0 && context.Cause(ctx) == nil {
		err = fmt.Errorf("read journal of machine %s: exit code %d", m.cfg.Name, code)
	}
	if context.Cause(ctx) != nil {
		return nil
	}
	return err
}
