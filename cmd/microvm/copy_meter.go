package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// meter counts what a copy has moved, for whoever watches it.
type meter struct {
	what string // is copied; set before it is used

	mu                    sync.Mutex // guards what follows
	bytes, allBytes       int64      // content; allBytes is 0 as long as nobody knows it
	files, allFiles       int64
	doing                 string // now: "sending a/b"
	measured              time.Duration
	measuredBytes, perSec int64
}

// plan says what there is to do, beyond what was done.
func (m *meter) plan(files, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.allFiles, m.allBytes = m.files+files, m.bytes+bytes
}

func (m *meter) do(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.doing = fmt.Sprintf(format, args...)
}

func (m *meter) addFile() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files++
}

func (m *meter) add(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes += bytes
}

// moved is what was done until now.
func (m *meter) moved() (files, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.files, m.bytes
}

// settle corrects what was counted as sent to what arrived.
func (m *meter) settle(files, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files, m.bytes = files, bytes
}

// line says how far the copy is. Its rate is that since the line before.
func (m *meter) line(after time.Duration) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if passed := after - m.measured; passed > 0 {
		m.perSec = int64(float64(m.bytes-m.measuredBytes) / passed.Seconds())
		m.measured, m.measuredBytes = after, m.bytes
	}
	amount, count := size(m.bytes), countOf(m.files, "file")
	if m.allFiles > 0 {
		amount += " of " + size(m.allBytes)
		count = fmt.Sprintf("%d of %s", m.files, countOf(m.allFiles, "file"))
	}
	return fmt.Sprintf("%s: %s, %s, %s/s; %s (%d s)", m.what, amount, count, size(max(m.perSec, 0)), m.doing, int(after.Seconds()))
}

// short is the end of a path, so that a line of progress stays one line.
func short(name string) string {
	const most = 40
	text := []rune(clean(name))
	if len(text) <= most {
		return string(text)
	}
	return "..." + string(text[len(text)-most+3:])
}

// countOf is a number with its noun.
func countOf(n int64, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// metered counts what is read from it.
type metered struct {
	from  io.Reader
	meter *meter
}

func (r *metered) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	r.meter.add(int64(n))
	return n, err
}
