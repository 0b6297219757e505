package httpapi

import (
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// endless is a file that never ends, and counts how often it was closed.
type endless struct{ closed atomic.Int64 }

func (e *endless) Read(p []byte) (int, error) { clear(p); return len(p), nil }
func (e *endless) Close() error               { e.closed.Add(1); return nil }

// TestDownloadEndsWithItsReader: one that has gone, at once; one that takes
// nothing, after a bound; the guest's side is closed.
func TestDownloadEndsWithItsReader(t *testing.T) {
	for _, path := range []string{filesPath + "?path=a", archivePath + "?path=a"} {
		t.Run("gone", func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				file := &endless{}
				b.world.files.body, b.world.files.entry.Size = file, 1<<40
				got := b.get(t, path)
				if _, err := io.ReadFull(got.Body, make([]byte, 1<<20)); err != nil {
					t.Fatal(err)
				}
				b.over(t, func() { got.Body.Close() }, 0)
				if file.closed.Load() != 1 {
					t.Errorf("it was closed %d times", file.closed.Load())
				}
			})
		})
		t.Run("takes nothing", func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				file := &endless{}
				b.world.files.body, b.world.files.entry.Size = file, 1<<40
				conn := b.dial()
				defer conn.Close()
				if _, err := io.WriteString(conn, request("GET", path, "")); err != nil {
					t.Fatal(err)
				}
				if _, err := conn.Read(make([]byte, 4<<10)); err != nil { // the header
					t.Fatal(err)
				}
				b.over(t, func() {}, writeStall)
				if file.closed.Load() != 1 {
					t.Errorf("it was closed %d times", file.closed.Load())
				}
			})
		})
	}
}

// over does what ends the one request under way, and looks for its line in the
// log, which comes after so long and not before.
func (b *bubble) over(t *testing.T, end func(), after time.Duration) {
	t.Helper()
	ended := func() bool { synctest.Wait(); return strings.Contains(b.log.String(), `"msg":"request"`) }
	if ended() {
		t.Fatalf("it has ended before:\n%s", b.log)
	}
	end()
	if after > 0 {
		time.Sleep(after - time.Second)
		if ended() {
			t.Errorf("it has ended too early:\n%s", b.log)
		}
		time.Sleep(4 * time.Second) // a large write may take longer
	}
	if !ended() {
		t.Errorf("after %s it goes on:\n%s", after, b.log)
	}
}

// TestUploadEndsWithItsSender: one that breaks off is told so, where it can be, and
// what came of it is the noun's to throw away.
func TestUploadEndsWithItsSender(t *testing.T) {
	for _, path := range []string{"/files/content?path=a", "/files/content?path=a&append_at=5", "/archive?path=a"} {
		inBubble(t, func(t *testing.T, b *bubble) {
			conn := b.dial()
			if _, err := io.WriteString(conn, request("PUT", strings.TrimSuffix(filesPath, "/files")+path, "Content-Length: 1000\r\n")+"some"); err != nil {
				t.Fatal(err)
			}
			b.over(t, func() { conn.Close() }, 0)
			if b.world.files.written != 4 || !strings.Contains(b.log.String(), `"code":"body_invalid"`) {
				t.Errorf("%s: %d bytes came:\n%s", path, b.world.files.written, b.log)
			}
		})
	}
}
