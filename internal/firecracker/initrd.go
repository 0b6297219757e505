package firecracker

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/microvmd/microvm/internal/guestwire"
)

// The type bits of a mode in a cpio archive (stat(2)).
const (
	cpioDir  = 0o040000
	cpioFile = 0o100000
	cpioChar = 0o020000
	cpioType = 0o170000
)

// packInitrd writes the guest's initial RAM file system: the agent as /init
// and two device nodes.
// Without /dev/null a Go program cannot run as the first process when the
// kernel has no console: the runtime opens it in place of the descriptors 0 to
// 2. The archive is not compressed: unpacking costs the guest more than reading.
func packInitrd(w io.Writer, guestd string) error {
	archive := &cpioWriter{w: bufio.NewWriter(w)}
	archive.add(cpioEntry{name: "dev", mode: cpioDir | 0o755})
	archive.add(cpioEntry{name: "dev/console", mode: cpioChar | 0o600, major: 5, minor: 1})
	archive.add(cpioEntry{name: "dev/null", mode: cpioChar | 0o666, major: 1, minor: 3})
	archive.addFile(strings.TrimPrefix(guestwire.InitPath, "/"), 0o755, guestd)
	return archive.close()
}

type cpioEntry struct {
	name         string
	mode         uint32
	major, minor uint32 // of a device node
	data         []byte
}

// cpioWriter writes the "newc" form of Documentation/driver-api/early-userspace/buffer-format.rst:
// a header of 13 numbers in 8 hex digits, the name, the data, each padded to 4
// bytes. Times, owners and inode numbers are constant: equal input is equal
// output. After an error it writes nothing more; close returns it.
type cpioWriter struct {
	w     *bufio.Writer
	inode int
	err   error
}

const maxCpioFile = 256 << 20

func (c *cpioWriter) addFile(name string, mode uint32, source string) {
	if c.err != nil {
		return
	}
	data, err := os.ReadFile(source)
	if err == nil && (len(data) == 0 || len(data) > maxCpioFile) {
		err = fmt.Errorf("%s has %d bytes", source, len(data))
	}
	if err != nil {
		c.err = err
		return
	}
	c.add(cpioEntry{name: name, mode: cpioFile | mode, data: data})
}

func (c *cpioWriter) add(e cpioEntry) {
	c.inode++
	links := 1
	if e.mode&cpioType == cpioDir {
		links = 2
	}
	c.printf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		c.inode, e.mode, 0, 0, links, 0, len(e.data), 0, 0, e.major, e.minor, len(e.name)+1, 0, e.name)
	c.pad(110 + len(e.name) + 1)
	if c.err == nil {
		_, c.err = c.w.Write(e.data)
	}
	c.pad(len(e.data))
}

func (c *cpioWriter) pad(size int) { c.printf("%s", "\x00\x00\x00"[:(4-size%4)%4]) }

func (c *cpioWriter) printf(format string, args ...any) {
	if c.err == nil {
		_, c.err = fmt.Fprintf(c.w, format, args...)
	}
}

func (c *cpioWriter) close() error {
	c.inode = -1
	c.add(cpioEntry{name: "TRAILER!!!"})
	return errors.Join(c.err, c.w.Flush())
}
