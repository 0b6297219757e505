package image

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/microvmd/microvm/internal/fault"
)

// clues are what a tree's own files say of it.
type clues struct {
	passwd   []byte // of a file etc/passwd
	native   int    // programs of each kind of processor
	foreign  int
	stranger string // one of those
	machine  uint16 // ELF's number of the node's
}

const maxPasswd = 1 << 20 // bytes of etc/passwd, of which the agent reads no more either

// machines are the numbers that programs have for a GOARCH (elf(5), e_machine).
var machines = map[string]uint16{"amd64": 62, "arm64": 183}

// programs are the directories whose programs tell the processor.
var programs = map[string]bool{"bin": true, "sbin": true, "usr/bin": true, "usr/sbin": true}

// look notes what it needs of a file's content, and returns all of it.
func (s *clues) look(plain *tar.Header, content io.Reader) (io.Reader, error) {
	want := int64(0)
	switch {
	case plain.Name == "etc/passwd":
		want = maxPasswd
	case programs[path.Dir(plain.Name)]:
		want = 20
	default:
		return content, nil
	}
	head, err := io.ReadAll(io.LimitReader(content, want))
	if err != nil {
		return nil, err
	}
	if plain.Name == "etc/passwd" {
		s.passwd = head
	} else {
		s.program(plain.Name, head)
	}
	return io.MultiReader(bytes.NewReader(head), content), nil
}

func (s *clues) program(name string, head []byte) {
	if len(head) < 20 || !bytes.HasPrefix(head, []byte("\x7fELF")) {
		return
	}
	var order binary.ByteOrder = binary.LittleEndian
	if head[5] == 2 { // EI_DATA
		order = binary.BigEndian
	}
	if order.Uint16(head[18:]) == s.machine {
		s.native++
		return
	}
	s.foreign, s.stranger = s.foreign+1, name
}

// arch refuses a tree whose programs are all another processor's.
func (s *clues) arch(want string) error {
	if s.native > 0 || s.foreign == 0 {
		return nil
	}
	return refuse(s.stranger, "it is a program of another processor, as are all %d in /bin and /usr/bin; this node is %s", s.foreign, want)
}

// user finds a user's ids. The agent reads the same file as the guest boots.
func (s *clues) user(name string) (uid, gid int, err error) {
	for line := range strings.SplitSeq(string(s.passwd), "\n") {
		field := strings.Split(line, ":")
		if len(field) < 7 || field[0] != name {
			continue
		}
		u, err1 := strconv.ParseUint(field[2], 10, 32)
		g, err2 := strconv.ParseUint(field[3], 10, 32)
		if err1 != nil || err2 != nil {
			break
		}
		return int(u), int(g), nil
	}
	return 0, 0, fault.Param("user", "the tree's /etc/passwd has no user %+.70q, or it is no file of the tree; name one that it has", name)
}
