package guest

import (
	"path/filepath"
	"strconv"
)

// maxOwnerNames is how many owners of an archive are looked up; what belongs to
// others has their numbers only.
const maxOwnerNames = 256

// ownerNames finds the names of users and groups, and remembers them.
type ownerNames struct {
	etc    string
	users  map[uint32]string
	groups map[uint32]string
}

func newOwnerNames(etc string) *ownerNames {
	return &ownerNames{etc: etc, users: make(map[uint32]string), groups: make(map[uint32]string)}
}

func (o *ownerNames) user(id uint32) string  { return o.find("passwd", o.users, id) }
func (o *ownerNames) group(id uint32) string { return o.find("group", o.groups, id) }

// find looks a number up; "" stands for none.
func (o *ownerNames) find(file string, known map[uint32]string, id uint32) string {
	name, ok := known[id]
	if ok || len(known) >= maxOwnerNames {
		return name
	}
	number := strconv.FormatUint(uint64(id), 10)
	_ = eachLine(filepath.Join(o.etc, file), func(line []byte) bool {
		var field [3][]byte // name, password, number: of both files
		if cutFields(line, field[:]) && string(field[2]) == number && len(field[0]) <= 64 {
			name = string(field[0])
			return false
		}
		return true
	})
	known[id] = name
	return name
}
