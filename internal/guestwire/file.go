package guestwire

import "cmp"

// Routes of file calls. A path is absolute or relative to the working directory,
// has at most MaxPath bytes and no NUL, and is cleaned by its text alone. Links on
// its way are followed inside the guest. The last part is followed where a file is
// read or added to and where a directory is listed, packed, unpacked into or
// watched; everything else is about the link itself.
const (
	RouteReadFile     = "GET /v1/files"        // ?path=[&offset=][&length=] -> octet-stream with Content-Length, and FileHeader
	RouteWriteFile    = "PUT /v1/files"        // ?path=&mode= octal[&append_at=]; octet-stream -> Entry
	RouteRemove       = "DELETE /v1/files"     // ?path=&recursive= -> Removed, late
	RouteWriteFiles   = "POST /v1/files/batch" // for each file a FileHead and its content -> Entries, late
	RouteMove         = "POST /v1/files/move"  // Move -> Entry
	RouteMakeDir      = "POST /v1/files/dirs"  // MakeDir -> Entry
	RouteStat         = "GET /v1/files/stat"   // ?path= -> Entry
	RouteList         = "GET /v1/files/list"   // ?path=&depth=&limit=&after= -> lines: Entry of the directory, Entry of each, ListEnd
	RouteWatch        = "GET /v1/files/watch"  // ?path=&recursive= -> lines: Change with no type for the directory, then Change, or nothing as a sign of life
	RouteReadArchive  = "GET /v1/archive"      // ?path=&gzip=&after= -> tar
	RouteWriteArchive = "PUT /v1/archive"      // ?path=&gzip=&keep_owners=; tar -> Unpacked, late

	// FileHeader is the field of the reply to RouteReadFile that has the file's
	// Entry, without a path.
	FileHeader = "File"
)

// A late reply is one to work that may be long. It takes the status 200 as soon
// as a sign of life is due, and then has spaces, one each SignSeconds, before its
// JSON. Should it be a refusal after all, the JSON is an Error.

// Bounds of file calls.
const (
	MaxBatch      = 100       // files of a batch
	MaxFileHead   = 16 << 10  // bytes of a FileHead as JSON: a path of MaxPath in base64
	MaxBatchReply = 2 << 20   // bytes of the reply to a batch, as JSON
	MaxDepth      = 32        // levels of a list
	MaxList       = 1000      // entries of a list
	MaxListBytes  = 1 << 20   // bytes of a list, as JSON, after which it ends
	MaxMembers    = 1_000_000 // members of an archive that is unpacked
	MaxWatches    = 8         // watches at once
	MaxWatched    = 8192      // directories that all watches look at
	MaxTarget     = 4096      // bytes of a link's target
	MaxEntryPath  = 32 << 10  // bytes of an entry's path: working directory, MaxPath, and MaxDepth names
	SignSeconds   = 5         // s between two signs of life of a late reply
	MaxSigns      = 1440      // signs of life before a late reply: two hours
	WatchSeconds  = 10        // s after which a watch gives a sign of life
)

// EntryType says what lies at a path.
type EntryType string

// The types. The list is closed.
const (
	TypeFile      EntryType = "file"
	TypeDirectory EntryType = "directory"
	TypeSymlink   EntryType = "symlink"
	TypeFIFO      EntryType = "fifo"
	TypeSocket    EntryType = "socket"
	TypeDevice    EntryType = "device" // of blocks or characters
)

// Entry describes what lies at a path. Path and Target are bytes as the guest's
// kernel has them: they need not be UTF-8.
type Entry struct {
	Path       string    // absolute
	Type       EntryType // a link is "symlink", whatever it leads to
	Size       int64     // bytes
	Mode       string    // four octal digits: permission bits, setuid, setgid, sticky
	UID        uint32
	GID        uint32
	ModifiedNS int64  // ns since 1970 UTC, negative before
	Inode      uint64 // with ModifiedNS and Size it tells two contents apart
	Target     string // of a link
}

// MakeDir asks for a directory and its missing parents.
type MakeDir struct {
	Path string
	Mode uint32 // permission bits of the directory; the parents have 0755
}

// Move asks for rename(2). The new place's directory must be there.
type Move struct {
	From, To string
	Replace  bool // what lies at To, unless it is a directory with entries
}

// FileHead stands before each file of a batch.
type FileHead struct {
	Path string
	Mode uint32
	Size int64 // bytes of content that follow
}

// Entries answers a batch, in its order.
type Entries struct {
	Entries []Entry `json:"entries"`
}

// Removed answers a removal.
type Removed struct {
	Entries int64 `json:"entries"` // that are gone, the named one among them
}

// Unpacked answers an archive.
type Unpacked struct {
	Entries int64 `json:"entries"` // members
	Bytes   int64 `json:"bytes"`   // of files' content
}

// ListEnd is the last line of a list.
type ListEnd struct {
	More *bool `json:"more"` // entries follow after the last; never nil
}

// ComparePaths orders two relative paths as a list does: part by part, and the
// parts by their bytes, so that a directory stands right before what it holds.
func ComparePaths(a, b string) int {
	for i := range min(len(a), len(b)) {
		if a[i] == b[i] {
			continue
		}
		switch {
		case a[i] == '/':
			return -1
		case b[i] == '/':
			return 1
		}
		return cmp.Compare(a[i], b[i])
	}
	return cmp.Compare(len(a), len(b))
}

// ChangeType says what happened.
type ChangeType string

// The types. The list is closed.
const (
	NoChange       ChangeType = ""         // a sign of life; the first says that the watch is set up, and has the directory's path
	ChangeCreated  ChangeType = "created"  // or was moved here from elsewhere, or written as a whole
	ChangeModified ChangeType = "modified" // content, mode, owner or times
	ChangeRemoved  ChangeType = "removed"  // or was moved elsewhere
	ChangeMoved    ChangeType = "moved"    // between directories that are watched
	ChangeOverflow ChangeType = "overflow" // changes were missed
)

// Change is what a watch tells.
type Change struct {
	Type  ChangeType
	Path  string // absolute; "" for an overflow
	From  string // of what was moved
	IsDir bool
}
