package guest

import (
	"bytes"
	"errors"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/microvmd/microvm/internal/guestwire"
)

// Bounds on the guest's own files, which hostile root may have written.
const (
	maxAccountFile = 1 << 20 // bytes of /etc/passwd or /etc/group that are read
	maxGroups      = 64      // supplementary groups that a program gets
)

var errAccounts = errors.New("the file, or a line of it, is too long")

// account is a user of the guest. In Config.SameUser mode it is only a name:
// programs then run as the agent's own user.
type account struct {
	name   string
	uid    uint32
	gid    uint32
	groups []uint32
	home   string
	shell  string
	same   bool // no change of user
}

// credential is what the kernel is asked for; nil means no change of user.
func (a account) credential() *syscall.Credential {
	if a.same {
		return nil
	}
	return &syscall.Credential{Uid: a.uid, Gid: a.gid, Groups: a.groups}
}

// lookupAccount reads a user from the passwd and group files under etc. A name
// that is not there, or a line that makes no sense, is user_not_found.
func lookupAccount(etc, name string) (account, error) {
	var found *account
	err := eachLine(filepath.Join(etc, "passwd"), func(line []byte) bool {
		var field [7][]byte
		if !cutFields(line, field[:]) || string(field[0]) != name {
			return true
		}
		uid, err1 := strconv.ParseUint(string(field[2]), 10, 32)
		gid, err2 := strconv.ParseUint(string(field[3]), 10, 32)
		if err1 != nil || err2 != nil {
			return false
		}
		found = &account{name: name, uid: uint32(uid), gid: uint32(gid), home: string(field[5]), shell: string(field[6])}
		return false
	})
	if found == nil || err != nil || name == "" {
		return account{}, refuse(guestwire.UserNotFound, "no such user in the guest")
	}
	// A missing group file leaves the user with its first group only.
	_ = eachLine(filepath.Join(etc, "group"), func(line []byte) bool {
		var field [4][]byte
		if !cutFields(line, field[:]) || !isMember(field[3], name) {
			return true
		}
		gid, err := strconv.ParseUint(string(field[2]), 10, 32)
		if err == nil && uint32(gid) != found.gid {
			found.groups = append(found.groups, uint32(gid))
		}
		return len(found.groups) < maxGroups
	})
	return *found, nil
}

// cutFields cuts a line at its colons, and says whether it has enough of them.
// The last field ends at the next colon, if there is one.
func cutFields(line []byte, field [][]byte) bool {
	for i := range field {
		var more bool
		field[i], line, more = bytes.Cut(line, []byte(":"))
		if !more && i < len(field)-1 {
			return false
		}
	}
	return true
}

// isMember says whether name is in a list with commas.
func isMember(list []byte, name string) bool {
	for member := range bytes.SplitSeq(list, []byte(",")) {
		if string(member) == name {
			return true
		}
	}
	return false
}

// eachLine hands the lines of a regular file to visit until it returns false.
// A FIFO in its place is refused and not waited for. It is a part of each start,
// so it goes without what a file of package os and a scanner cost.
func eachLine(path string, visit func([]byte) bool) error {
	fd, err := openAt(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	var info unix.Stat_t
	if err := unix.Fstat(fd, &info); err != nil || info.Mode&unix.S_IFMT != unix.S_IFREG {
		return refuse(guestwire.NotAFile, path)
	}
	buf := buffers.Get().(*chunk) //nolint:forcetypeassert // the pool holds nothing else
	defer buffers.Put(buf)
	held := 0 // bytes of buf that are a line's beginning
	for total := 0; total < maxAccountFile; {
		n, err := unix.Read(fd, buf[held:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			visit(buf[:held])
			return nil
		}
		total += n
		rest := buf[:held+n]
		for {
			line, after, more := bytes.Cut(rest, []byte("\n"))
			if !more {
				break
			}
			if !visit(line) {
				return nil
			}
			rest = after
		}
		if held = copy(buf[:], rest); held == len(buf) {
			break
		}
	}
	return errAccounts
}
