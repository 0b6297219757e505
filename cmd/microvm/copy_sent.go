package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	microvm "github.com/microvmd/microvm/sdk/go"
)

// sentRecord remembers large files that were sent into a sandbox. What is sent in
// parts gets the time of its arrival there, so nothing else says at the next copy
// that it is the same. It lies with this user's caches: where it is lost, files
// are sent again.
type sentRecord struct {
	path string // "" keeps nothing
	sent map[string]sentFile
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
	r := &sentRecord{sent: map[string]sentFile{}}
	caches, err := os.UserCacheDir()
	if err != nil || filepath.Base(sandbox) != sandbox {
		return r
	}
	r.path = filepath.Join(caches, "microvm", "sent", sandbox+".json")
	if text, err := os.ReadFile(r.path); err != nil || json.Unmarshal(text, &r.sent) != nil || r.sent == nil {
		r.sent = map[string]sentFile{}
	}
	return r
}

// has says whether what lies at a path is what was sent from here.
func (r *sentRecord) has(name string, here, there entry) bool {
	sent, ok := r.sent[name]
	return ok && there.file() && here.mode == there.mode && sent.Size == here.size && sent.Size == there.size &&
		sent.Modified.Equal(here.modified) && sent.There.Equal(there.modified)
}

func (r *sentRecord) add(name string, here entry, there *microvm.File) {
	r.sent[name] = sentFile{here.size, here.modified, there.Modified}
	if there.Path != name { // it is asked for by the absolute one once its directory is there
		r.sent[there.Path] = r.sent[name]
	}
	if r.path != "" {
		r.write()
	}
}

// write keeps the record, where it can be kept.
func (r *sentRecord) write() {
	dir := filepath.Dir(r.path)
	text, err := json.Marshal(r.sent)
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
