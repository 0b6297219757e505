package image

import (
	"archive/tar"
	"strings"
	"time"

	"github.com/microvmd/microvm/internal/fault"
)

// Bounds of the file system and of Linux.
const (
	maxName   = 255  // bytes of one name (linux/limits.h, NAME_MAX)
	maxPath   = 4095 // bytes of a path or of a symbolic link's target (PATH_MAX less its NUL)
	maxMode   = 0o7777
	typeBits  = 0o170000        // of a mode, which old tars have in theirs
	maxID     = 1<<32 - 2       // of a user or group; the last one means "none"
	lastTime  = 0x37fffffff     // in seconds: 10 May 2446, the last one of ext4's inodes
	whiteout  = ".wh."          // begins what marks a removal in a layer
	deviceDir = "dev"           // the guest's own lies over it
	foundDir  = "lost+found"    // the file system's own
	maxFile   = int64(40) << 30 // bytes; the ext4 writer's extent tree is wrong from 42.5 GiB on
)

// refuse is the refusal of a member: by its name, which may hold anything.
func refuse(name, format string, args ...any) error {
	return fault.New(fault.ImageInvalid, "member %+.200q: "+format, append([]any{name}, args...)...)
}

// cleanName takes a member's name apart from what tars put around it: a leading
// "./" and a directory's trailing slash. "" is the root. field says which of a
// header's names it is.
func cleanName(member, name, field string) (string, error) {
	rest := name
	for strings.HasPrefix(rest, "./") {
		rest = strings.TrimPrefix(rest, "./")
	}
	rest = strings.TrimSuffix(rest, "/")
	switch {
	case name == "":
		return "", refuse(member, "its %s is empty", field)
	case strings.HasPrefix(rest, "/") || name == "/":
		return "", refuse(member, "its %s is absolute (%+.200q); names begin at the tree's root, without a slash", field, name)
	case strings.ContainsRune(name, 0):
		return "", refuse(member, "its %s has a NUL", field)
	case len(rest) > maxPath:
		return "", refuse(member, "its %s has %d bytes, the most is %d", field, len(rest), maxPath)
	case rest == "" || rest == ".":
		return "", nil
	}
	for part := range strings.SplitSeq(rest, "/") {
		switch {
		case part == "..":
			return "", refuse(member, `its %s has "..", which may lead out of the tree (%+.200q)`, field, name)
		case part == "" || part == ".":
			return "", refuse(member, "its %s is not clean: an empty part or a dot in it (%+.200q)", field, name)
		case len(part) > maxName:
			return "", refuse(member, "its %s has a part of %d bytes, the most is %d", field, len(part), maxName)
		}
	}
	return rest, nil
}

// checkHeader refuses what a header says of a member that no image can keep, and
// never trims it silently.
func checkHeader(h *tar.Header) error {
	switch {
	case words[h.Typeflag] == "":
		return refuse(h.Name, "its type is %+q, which is no kind of file that an image can have", h.Typeflag)
	case h.Size < 0 || h.Size > maxFile:
		return refuse(h.Name, "its size is %d, and must be 0 to %d bytes", h.Size, maxFile)
	case h.Size > 0 && h.Typeflag != tar.TypeReg:
		return refuse(h.Name, "its size is %d, and a %s has no content", h.Size, words[h.Typeflag])
	case h.Mode&^typeBits < 0 || h.Mode&^typeBits > maxMode:
		return refuse(h.Name, "its mode is %#o", h.Mode)
	case h.Uid < 0 || int64(h.Uid) > maxID:
		return refuse(h.Name, "its uid is %d", h.Uid)
	case h.Gid < 0 || int64(h.Gid) > maxID:
		return refuse(h.Name, "its gid is %d", h.Gid)
	case !h.ModTime.IsZero() && (h.ModTime.Unix() < 0 || h.ModTime.Unix() > lastTime):
		return refuse(h.Name, "its time is %s, and must be of 1970 to 2446", h.ModTime.UTC().Format(time.DateTime))
	}
	return nil
}

// checkTarget checks where a symbolic link leads: anywhere, since only the guest
// follows it.
func checkTarget(h *tar.Header) error {
	switch {
	case h.Linkname == "":
		return refuse(h.Name, "its target is empty")
	case len(h.Linkname) > maxPath:
		return refuse(h.Name, "its target has %d bytes, the most is %d", len(h.Linkname), maxPath)
	case strings.ContainsRune(h.Linkname, 0):
		return refuse(h.Name, "its target has a NUL")
	}
	return nil
}

// checkDevice takes devices beneath /dev, where debootstrap makes some: the
// guest's own /dev hides them. Elsewhere a program of the guest could open them.
func checkDevice(h *tar.Header, name string) error {
	switch {
	case !strings.HasPrefix(name, deviceDir+"/"):
		return refuse(h.Name, "it is a %s, which an image may have beneath /dev only", words[h.Typeflag])
	case h.Devmajor < 0 || h.Devmajor > 0xfff || h.Devminor < 0 || h.Devminor > 0xfffff:
		return refuse(h.Name, "its device numbers are %d and %d", h.Devmajor, h.Devminor)
	case h.Devmajor == 0 && h.Devminor == 0:
		return refuse(h.Name, "its device numbers are 0 and 0, which an overlay takes for a removed file")
	}
	return nil
}

// wantDirectories are what the guest mounts or writes into; a link in place of
// one would lead it elsewhere.
var wantDirectories = map[string]bool{"etc": true, "proc": true, "sys": true, "dev": true, "run": true, "tmp": true, foundDir: true}
