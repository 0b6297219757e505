package guest

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/microvmd/microvm/internal/guestwire"
)

// Bounds on the guest's own files, which hostile root may have written.
const (
	maxAccountFile = 1 << 20 // bytes of /etc/passwd or /etc/group that are read
	maxGroups      = 64      // supplementary groups that a program gets
)

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
	err := eachLine(filepath.Join(etc, "passwd"), func(line string) bool {
		field := strings.Split(line, ":")
		if len(field) < 7 || field[0] != name {
			return true
		}
		uid, err1 := strconv.ParseUint(field[2], 10, 32)
		gid, err2 := strconv.ParseUint(field[3], 10, 32)
		if err1 != nil || err2 != nil {
			return false
		}
		found = &account{name: name, uid: uint32(uid), gid: uint32(gid), home: field[5], shell: field[6]}
		return false
	})
	if found == nil || err != nil || name == "" {
		return account{}, refuse(guestwire.UserNotFound, "no such user in the guest")
	}
	// A missing group file leaves the user with its first group only.
	_ = eachLine(filepath.Join(etc, "group"), func(line string) bool {
		field := strings.Split(line, ":")
		if len(field) < 4 {
			return true
		}
		gid, err := strconv.ParseUint(field[2], 10, 32)
		if err != nil || uint32(gid) == found.gid {
			return true
		}
		for member := range strings.SplitSeq(field[3], ",") {
			if member == name {
				found.groups = append(found.groups, uint32(gid)) //nolint:gosec // parsed as 32 bits
				break
			}
		}
		return len(found.groups) < maxGroups
	})
	return *found, nil
}

// eachLine hands the lines of a regular file to visit until it returns false.
// A FIFO in its place is refused and not waited for.
func eachLine(path string, visit func(string) bool) error {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return refuse(guestwire.NotAFile, path)
	}
	lines := bufio.NewScanner(io.LimitReader(file, maxAccountFile))
	for lines.Scan() {
		if !visit(lines.Text()) {
			return nil
		}
	}
	return lines.Err()
}
