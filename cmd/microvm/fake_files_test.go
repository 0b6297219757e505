package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// fakeFile is what lies at a path of a fake sandbox.
type fakeFile struct {
	kind     microvm.FileType
	content  []byte
	mode     string
	modified time.Time
	target   string
	uid      int // where the archive's owners were asked for
	arrived  int // how often its content came whole
}

// cut breaks the next connection of a kind after so many bytes of its body, and
// then the one after that.
func (f *fakeNode) cut(what string, after ...int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cuts[what] = after
}

// requests is how many of a kind there were.
func (f *fakeNode) requests(what string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[what]
}

// lay is put for tests.
func (f *fakeNode) lay(sandbox, name string, file *fakeFile) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.put(sandbox, name, file)
}

// nextCut is after how many bytes this one breaks; -1 is never.
func (f *fakeNode) nextCut(what string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.cuts[what]) == 0 {
		return -1
	}
	after := f.cuts[what][0]
	f.cuts[what] = f.cuts[what][1:]
	return after
}

// cutBody breaks the connection behind so many bytes.
type cutBody struct {
	r    io.Reader
	w    http.ResponseWriter
	left int // -1 is never
}

func (c *cutBody) Read(p []byte) (int, error) {
	if c.left == 0 {
		panic(http.ErrAbortHandler)
	}
	if c.left > 0 && len(p) > c.left {
		p = p[:c.left]
	}
	n, err := c.r.Read(p)
	if c.left > 0 {
		c.left -= n
	}
	return n, err
}

func (c *cutBody) Write(p []byte) (int, error) {
	if c.left < 0 || len(p) < c.left {
		c.left = max(c.left-len(p), -1)
		return c.w.Write(p)
	}
	_, _ = c.w.Write(p[:c.left])
	_ = http.NewResponseController(c.w).Flush()
	panic(http.ErrAbortHandler)
}

func (c *cutBody) Header() http.Header    { return c.w.Header() }
func (c *cutBody) WriteHeader(status int) { c.w.WriteHeader(status) }

func absolute(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join("/workspace", name)
}

// put lays something at a path, with the directories above it. It expects the lock.
func (f *fakeNode) put(sandbox, name string, file *fakeFile) {
	if old := f.files[sandbox+" "+name]; old != nil {
		file.arrived += old.arrived
	}
	f.files[sandbox+" "+name] = file
	for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
		if f.files[sandbox+" "+dir] == nil {
			f.files[sandbox+" "+dir] = &fakeFile{kind: microvm.FileTypeDirectory, mode: "0755", modified: time.Now()}
		}
	}
}

// at is what lies at a path. It expects the lock.
func (f *fakeNode) at(sandbox, name string) *fakeFile {
	if name == "/workspace" || name == "/" {
		return &fakeFile{kind: microvm.FileTypeDirectory, mode: "0755"}
	}
	return f.files[sandbox+" "+name]
}

// beneath are the paths below a directory, in the order of lists, behind one.
func (f *fakeNode) beneath(sandbox, dir, after string) (names []string) {
	for key := range maps.Keys(f.files) {
		if name, ok := strings.CutPrefix(key, sandbox+" "+dir+"/"); ok && (after == "" || comparePaths(name, after) > 0) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, comparePaths)
	return names
}

func wire(name string, file *fakeFile) microvm.File {
	w := microvm.File{
		Object: microvm.FileObjectFile, Path: name, Type: file.kind, Size: int64(len(file.content)), Mode: file.mode,
		UID: int64(file.uid), Modified: file.modified.UTC().Truncate(time.Millisecond),
	}
	if file.kind == microvm.FileTypeSymlink {
		w.Target = &file.target
	}
	return w
}

func noFile(w http.ResponseWriter) {
	missing(w, microvm.ErrorCodeFileNotFound, "the sandbox has no file at this path; check the path")
}

func (f *fakeNode) statFile(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := absolute(r.URL.Query().Get("path"))
	file := f.at(r.PathValue("sandbox"), name)
	if file == nil {
		noFile(w)
		return
	}
	send(w, 200, wire(name, file))
}

func (f *fakeNode) listFiles(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := r.URL.Query()
	dir := absolute(q.Get("path"))
	file := f.at(r.PathValue("sandbox"), dir)
	if file == nil || file.kind != microvm.FileTypeDirectory {
		noFile(w)
		return
	}
	depth, _ := strconv.Atoi(q.Get("depth"))
	list := microvm.FileList{Object: microvm.ListObjectList, URL: "/v1/files", Data: []microvm.File{}}
	for _, name := range f.beneath(r.PathValue("sandbox"), dir, q.Get("after")) {
		if strings.Count(name, "/") >= depth {
			continue
		}
		if len(list.Data) == f.page {
			list.HasMore = true
			break
		}
		full := path.Join(dir, name)
		list.Data = append(list.Data, wire(full, f.at(r.PathValue("sandbox"), full)))
	}
	send(w, 200, list)
}

// writeArchive keeps each file that came whole, as the agent does.
func (f *fakeNode) writeArchive(w http.ResponseWriter, r *http.Request) {
	sandbox, dir := r.PathValue("sandbox"), absolute(r.URL.Query().Get("path"))
	archive := tar.NewReader(&cutBody{r: r.Body, left: f.nextCut("PUT archive")})
	for {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			send(w, 200, microvm.ArchiveUnpacked{Object: microvm.ArchiveUnpackedObjectArchiveUnpacked})
			return
		}
		if err != nil {
			return
		}
		file := &fakeFile{mode: fmt.Sprintf("%04o", head.Mode), modified: head.ModTime, target: head.Linkname}
		if r.URL.Query().Get("owners") == "keep" {
			file.uid = head.Uid
		}
		switch head.Typeflag {
		case tar.TypeDir:
			file.kind = microvm.FileTypeDirectory
		case tar.TypeSymlink:
			file.kind, file.arrived = microvm.FileTypeSymlink, 1
		default:
			file.kind, file.arrived = microvm.FileTypeFile, 1
			if file.content, err = io.ReadAll(archive); err != nil {
				return
			}
		}
		f.mu.Lock()
		f.put(sandbox, path.Join(dir, head.Name), file)
		f.mu.Unlock()
	}
}

func (f *fakeNode) readArchive(w http.ResponseWriter, r *http.Request) {
	sandbox, q := r.PathValue("sandbox"), r.URL.Query()
	dir := absolute(q.Get("path"))
	w.Header().Set("Content-Type", "application/x-tar")
	out := &cutBody{w: w, left: f.nextCut("GET archive")}
	f.mu.Lock()
	raw := f.raw
	names := f.beneath(sandbox, dir, q.Get("after"))
	f.mu.Unlock()
	if raw != nil {
		raw(out, r)
		return
	}
	archive := tar.NewWriter(out)
	if q.Get("after") == "" {
		names = append([]string{"."}, names...)
	}
	for _, name := range names {
		f.mu.Lock()
		file := f.at(sandbox, path.Join(dir, name))
		f.mu.Unlock()
		mode, _ := strconv.ParseInt(file.mode, 8, 32)
		head := &tar.Header{Name: name, Mode: mode, Uid: file.uid, ModTime: file.modified, Typeflag: tar.TypeReg, Size: int64(len(file.content)), Format: tar.FormatPAX}
		switch file.kind {
		case microvm.FileTypeDirectory:
			head.Name, head.Typeflag = name+"/", tar.TypeDir
		case microvm.FileTypeSymlink:
			head.Typeflag, head.Linkname = tar.TypeSymlink, file.target
		}
		_ = archive.WriteHeader(head)
		_, _ = archive.Write(file.content)
	}
	_ = archive.Close()
}

func (f *fakeNode) writeFile(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	name := absolute(q.Get("path"))
	content, err := io.ReadAll(&cutBody{r: r.Body, left: f.nextCut("PUT file")})
	if err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sandbox(w, r) == nil {
		return
	}
	if q.Has("append_at") {
		var old []byte
		if file := f.at(r.PathValue("sandbox"), name); file != nil {
			old = file.content
		}
		if strconv.Itoa(len(old)) != q.Get("append_at") {
			refuse(w, 409, microvm.ErrorTypeInvalidRequestError, microvm.ErrorCodeFileConflict, "the file has another size", "append_at")
			return
		}
		content = append(slices.Clone(old), content...)
	}
	file := &fakeFile{kind: microvm.FileTypeFile, content: content, mode: q.Get("mode"), modified: time.Now(), arrived: 1}
	f.put(r.PathValue("sandbox"), name, file)
	send(w, 201, wire(name, file))
}

func (f *fakeNode) moveFile(w http.ResponseWriter, r *http.Request) {
	var move microvm.FileMove
	if !take(w, r, &move) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	sandbox, from, to := r.PathValue("sandbox"), absolute(move.From), absolute(move.To)
	file := f.at(sandbox, from)
	if file == nil {
		noFile(w)
		return
	}
	delete(f.files, sandbox+" "+from)
	f.put(sandbox, to, file)
	send(w, 200, wire(to, file))
}

func (f *fakeNode) readFile(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	file := f.at(r.PathValue("sandbox"), absolute(r.URL.Query().Get("path")))
	f.mu.Unlock()
	if file == nil {
		noFile(w)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if bytes.HasPrefix(file.content, []byte("CUT")) { // the guest dies in the middle of this one
		w.Header().Set("Content-Length", strconv.Itoa(len(file.content)+100))
		_, _ = w.Write(file.content)
		return
	}
	w.Header().Set("ETag", fmt.Sprintf(`"%x-%x"`, file.modified.UnixNano(), len(file.content)))
	left := -1
	if r.Header.Get("Range") != "bytes=0-0" { // that asks for the tag
		left = f.nextCut("GET file")
	}
	http.ServeContent(&cutBody{w: w, left: left}, r, "", time.Time{}, bytes.NewReader(file.content))
}
