package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// hostileError is an archive that no honest sandbox sends: not worth another try.
type hostileError struct{ name, why string }

func (h *hostileError) Error() string {
	name := []rune(clean(h.name))
	if len(name) > 100 {
		name = append(name[:100], []rune("...")...)
	}
	return fmt.Sprintf("the sandbox's archive holds %s, %s; nothing was made of it, and the copy ends here", string(name), h.why)
}

// withoutName is an error of this machine that shows a guest's name as it is to be
// shown: it could have a line of its own otherwise, with advice of its own.
func withoutName(name string, err error) error {
	var one *fs.PathError
	var two *os.LinkError
	switch {
	case errors.As(err, &one):
		return fmt.Errorf("%s %s: %w", one.Op, clean(name), one.Err)
	case errors.As(err, &two):
		return fmt.Errorf("%s %s: %w", two.Op, clean(name), two.Err)
	default:
		return err
	}
}

func tooMany() error {
	return fmt.Errorf("the sandbox has more than %d files and directories; copy parts of it", mostMembers)
}

func inTheWay(name string) error {
	return hint(fmt.Errorf("%s is no directory here, and one in the sandbox", clean(name)), "remove it, or copy to another place")
}

func isDirectory(name string) error {
	return hint(fmt.Errorf("%s is a directory here, and none in the sandbox", clean(name)), "remove it, or copy to another place")
}
