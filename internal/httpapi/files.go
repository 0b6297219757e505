package httpapi

import (
	"context"
	"encoding/base64"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/httpapi/gen"
	"github.com/microvmd/microvm/internal/httpapi/stamp"
	"github.com/microvmd/microvm/internal/sandbox"
)

// Files is what the API does with files of a running sandbox.
type Files interface {
	Contents
	Tree
	Archives
	Changes
}

var _ Files = (*sandbox.Files)(nil)

// Contents is what the API does with what is in files.
type Contents interface {
	// Read opens a file or a part of it; the body has info.Length bytes, or
	// fails before. A part behind the end is a fault.RangeInvalid.
	Read(ctx context.Context, sandboxID, path string, r guestwire.Range) (body io.ReadCloser, info guestwire.FileContent, err error)
	// Write writes a file whole or not at all. mode is permission bits.
	Write(ctx context.Context, sandboxID, path string, mode uint32, content io.Reader) (guestwire.Entry, error)
	// Append adds to a file that has at bytes.
	Append(ctx context.Context, sandboxID, path string, at int64, mode uint32, content io.Reader) (guestwire.Entry, error)
	// WriteBatch writes all files or none. It checks them before the guest
	// hears of one, and names the one at fault as files[3].path.
	WriteBatch(ctx context.Context, sandboxID string, files []guestwire.NewFile) ([]guestwire.Entry, error)
}

// Tree is what the API does with names and directories.
type Tree interface {
	Stat(ctx context.Context, sandboxID, path string) (guestwire.Entry, error)
	// List gives one page, of at most l.Limit entries.
	List(ctx context.Context, sandboxID string, l guestwire.List) (entries []guestwire.Entry, more bool, err error)
	MakeDir(ctx context.Context, sandboxID, path string, mode uint32) (guestwire.Entry, error)
	Move(ctx context.Context, sandboxID string, move guestwire.Move) (guestwire.Entry, error)
	Remove(ctx context.Context, sandboxID, path string, recursive bool) (guestwire.Removed, error)
}

// Archives is what the API does with directories as a whole.
type Archives interface {
	// ReadArchive packs a tar archive; a body that fails is no whole one.
	ReadArchive(ctx context.Context, sandboxID, path string, gzip bool, after string) (io.ReadCloser, error)
	WriteArchive(ctx context.Context, sandboxID, path string, gzip, keepOwners bool, tar io.Reader) (guestwire.Unpacked, error)
}

// Changes tells what changes.
type Changes interface {
	// Watch calls each with every change, and with guestwire.NoChange once when
	// the watch is in force and then as a sign of life. It returns each's error,
	// or why it ended.
	Watch(ctx context.Context, sandboxID, path string, recursive bool, each func(guestwire.Change) error) error
}

// checkFile refuses what no sandbox or file can be.
func checkFile(sandboxID, name, path string) error {
	if err := checkSandbox(sandboxID); err != nil {
		return err
	}
	if len(path) > guestwire.MaxPath || strings.ContainsRune(path, 0) {
		return fault.Param(name, "%s must have at most %d bytes and hold no NUL", name, guestwire.MaxPath)
	}
	return nil
}

// Permission bits of what is made without being told some.
const (
	fileMode      = 0o644
	directoryMode = 0o755
)

// modeOf reads permission bits, whose form the specification bounds.
func modeOf(name string, octal *string, standard uint32) (uint32, error) {
	if octal == nil {
		return standard, nil
	}
	bits, err := strconv.ParseUint(*octal, 8, 32)
	if err != nil || bits > 0o777 {
		return 0, fault.Param(name, "%s must be octal permission bits, 0000 to 0777", name)
	}
	return uint32(bits), nil
}

// wireFile is the wire form of what the guest says of a file.
func wireFile(e guestwire.Entry) gen.File {
	wire := gen.File{
		Object: gen.FileObjectFile, Type: gen.FileType(e.Type), Size: e.Size, Mode: e.Mode,
		UID: int64(e.UID), GID: int64(e.GID), Modified: stamp.Time(time.Unix(0, e.ModifiedNS)),
	}
	wire.Path, wire.PathBase64 = shown(e.Path)
	if e.Type == guestwire.TypeSymlink {
		target, exact := shown(e.Target)
		wire.Target, wire.TargetBase64 = &target, exact
	}
	return wire
}

func wireFiles(entries []guestwire.Entry) []gen.File {
	wire := make([]gen.File, 0, len(entries))
	for _, entry := range entries {
		wire = append(wire, wireFile(entry))
	}
	return wire
}

// shown is a path as JSON can have it; where that is another than the path, its
// bytes are exact.
func shown(path string) (text string, exact *string) {
	if utf8.ValidString(path) {
		return path, nil
	}
	encoded := base64.StdEncoding.EncodeToString([]byte(path))
	return strings.ToValidUTF8(path, "\uFFFD"), &encoded
}
