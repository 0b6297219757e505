package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// sentRecord remembers of one sandbox what nothing there tells: large files that
// were sent into it, as what is sent in parts gets the time of its arrival; and
// copies that made their own target and did not end, as the same command would
// else put the next one beneath it. It lies with this user's caches: where it is
// lost, files are sent again.
type sentRecord struct {
	path string // "" keeps nothing

	Sent    map[string]sentFile `json:"sent"`    // by path there
	Pending map[string]string   `json:"pending"` // the target, by what was asked for
}

// sentFile is one file as it was sent, and as it lay there then.
type sentFile struct {
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"` // here
	There    time.Time `json:"there"`
}

// keptRecords is how long a record is kept: no sandbox lives as long.
const keptRecords = 30 * 24 * time.Hour

func openRecord(sandbox string) *sentRecord {
	r := new(sentRecord)
	defer func() {
		if r.Sent == nil {
			r.Sent = map[string]sentFile{}
		}
		if r.Pending == nil {
			r.Pending = map[string]string{}
		}
	}()
	caches, err := os.UserCacheDir()
	if err != nil || filepath.Base(sandbox) != sandbox {
		return r
	}
	r.path = filepath.Join(caches, "microvm", "sent", sandbox+".json")
	if text, err := os.ReadFile(r.path); err == nil && json.Unmarshal(text, r) != nil {
		*r = sentRecord{path: r.path} // it is none
	}
	return r
}

// has says whether what lies at a path is what was sent from here.
func (r *sentRecord) has(name string, here, there entry) bool {
	sent, ok := r.Sent[name]
	return ok && there.file() && here.mode == there.mode && sent.Size == here.size && sent.Size == there.size &&
		sent.Modified.Equal(here.modified) && sent.There.Equal(there.modified)
}

func (r *sentRecord) add(name string, here entry, there *microvm.File) {
	r.Sent[name] = sentFile{here.size, here.modified, there.Modified}
	if there.Path != name { // it is asked for by the absolute one once its directory is there
		r.Sent[there.Path] = r.Sent[name]
	}
	r.write()
}

// begin remembers the target that a copy makes.
func (r *sentRecord) begin(asked, target string) {
	r.Pending[asked] = target
	r.write()
}

// end forgets it again.
func (r *sentRecord) end(asked string) {
	if _, begun := r.Pending[asked]; begun {
		delete(r.Pending, asked)
		r.write()
	}
}

// asked names a copy: the same words from the same place are the same.
func asked(way, local, remote string) string {
	if full, err := filepath.Abs(local); err == nil {
		local = full
	}
	return strings.Join([]string{way, local, remote}, "\x00")
}

// write keeps the record, where it can be kept.
func (r *sentRecord) write() {
	if r.path == "" {
		return
	}
	if len(r.Sent)+len(r.Pending) == 0 {
		_ = os.Remove(r.path)
		return
	}
	dir := filepath.Dir(r.path)
	text, err := json.Marshal(r)
	if err != nil || os.MkdirAll(dir, 0o700) != nil {
		return
	}
	if os.WriteFile(r.path+".new", text, 0o600) != nil || os.Rename(r.path+".new", r.path) != nil {
		return
	}
	others, _ := os.ReadDir(dir)
	for _, other := range others {
		if info, err := other.Info(); err == nil && time.Since(info.ModTime()) > keptRecords {
			_ = os.Remove(filepath.Join(dir, other.Name()))
		}
	}
}
