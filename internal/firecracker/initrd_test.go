package firecracker

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// readCpio is a second reader of the newc form, written from its document.
func readCpio(t *testing.T, data []byte) []string {
	t.Helper()
	var entries []string
	for {
		if len(data) < 110 || string(data[:6]) != "070701" {
			t.Fatalf("no header: %.110q", data)
		}
		field := func(n int) int {
			value, err := strconv.ParseUint(string(data[6+8*n:14+8*n]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return int(value)
		}
		align := func(n int) int { return (n + 3) &^ 3 }
		mode, links, size, nameLen := field(1), field(4), field(6), field(11)
		name := string(data[110 : 110+nameLen-1])
		if data[110+nameLen-1] != 0 {
			t.Fatalf("name %q does not end in a zero", name)
		}
		body := data[align(110+nameLen):]
		if name == "TRAILER!!!" {
			if rest := body; len(rest) != 0 {
				t.Fatalf("%d bytes after the trailer", len(rest))
			}
			return entries
		}
		line := strings.Join([]string{name, strconv.FormatInt(int64(mode), 8), strconv.Itoa(links), strconv.Itoa(field(9)) + ":" + strconv.Itoa(field(10)), string(body[:size])}, " ")
		entries = append(entries, line)
		data = body[align(size):]
	}
}

func TestInitrdHoldsTheAgent(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	guestd := write("guestd", "agent")
	plain := []string{"dev 40755 2 0:0 ", "dev/console 20600 1 5:1 ", "dev/null 20666 1 1:3 ", "init 100755 1 0:0 agent"}

	var archive, again bytes.Buffer
	if err := packInitrd(&archive, guestd); err != nil {
		t.Fatal(err)
	}
	if got := readCpio(t, archive.Bytes()); strings.Join(got, "\n") != strings.Join(plain, "\n") {
		t.Errorf("entries:\n%s", strings.Join(got, "\n"))
	}
	if err := packInitrd(&again, guestd); err != nil || !bytes.Equal(archive.Bytes(), again.Bytes()) {
		t.Errorf("equal input, other output: %v", err)
	}
}

func TestInitrdRefuses(t *testing.T) {
	dir := t.TempDir()
	guestd := filepath.Join(dir, "guestd")
	if err := packInitrd(&bytes.Buffer{}, guestd); err == nil {
		t.Error("a missing agent was packed")
	}
	if err := os.WriteFile(guestd, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := packInitrd(&bytes.Buffer{}, guestd); err == nil {
		t.Error("an empty agent was packed")
	}
}
