package machine

import (
	"fmt"
	"io"
)

// cpioWriter writes the "newc" format that the kernel unpacks as its first root (Documentation/driver-api/early-userspace/buffer-format.rst).
type cpioWriter struct {
	w   io.Writer
	ino int
	err error
}

// add writes one entry; mode holds the type bits of stat(2) too. Devices have major and minor numbers.
func (c *cpioWriter) add(name string, mode uint32, major, minor int, data []byte) {
	c.ino++
	header := fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		c.ino, mode, 0, 0, 1, 0, len(data), 0, 0, major, minor, len(name)+1, 0)
	c.write(header + name + "\x00")
	c.pad(len(header) + len(name) + 1)
	c.write(string(data))
	c.pad(len(data))
}

func (c *cpioWriter) write(s string) {
	if c.err == nil {
		_, c.err = io.WriteString(c.w, s)
	}
}

func (c *cpioWriter) pad(n int) { c.write("\x00\x00\x00"[:(4-n%4)%4]) }

// close writes the trailer.
func (c *cpioWriter) close() error {
	c.ino = -1
	c.add("TRAILER!!!", 0, 0, 0, nil)
	return c.err
}
