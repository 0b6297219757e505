package guestwire

import "encoding/json"

// A path may be any bytes, and JSON would put U+FFFD in the place of those that
// are no UTF-8. So paths travel as []byte, which is base64.

type wireEntry struct {
	Path       []byte    `json:"path,omitempty"`
	Type       EntryType `json:"type"`
	Size       int64     `json:"size"`
	Mode       string    `json:"mode"`
	UID        uint32    `json:"uid"`
	GID        uint32    `json:"gid"`
	ModifiedNS int64     `json:"modified_ns"`
	Inode      uint64    `json:"inode"`
	Target     []byte    `json:"target,omitempty"`
}

// MarshalJSON keeps every byte of the paths.
func (e Entry) MarshalJSON() ([]byte, error) {
	return json.Marshal(wireEntry{[]byte(e.Path), e.Type, e.Size, e.Mode, e.UID, e.GID, e.ModifiedNS, e.Inode, []byte(e.Target)})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (e *Entry) UnmarshalJSON(data []byte) error {
	var w wireEntry
	err := json.Unmarshal(data, &w)
	*e = Entry{string(w.Path), w.Type, w.Size, w.Mode, w.UID, w.GID, w.ModifiedNS, w.Inode, string(w.Target)}
	return err
}

type wireMakeDir struct {
	Path []byte `json:"path"`
	Mode uint32 `json:"mode"`
}

// MarshalJSON keeps every byte of the path.
func (m MakeDir) MarshalJSON() ([]byte, error) {
	return json.Marshal(wireMakeDir{[]byte(m.Path), m.Mode})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (m *MakeDir) UnmarshalJSON(data []byte) error {
	var w wireMakeDir
	err := json.Unmarshal(data, &w)
	*m = MakeDir{string(w.Path), w.Mode}
	return err
}

type wireMove struct {
	From    []byte `json:"from"`
	To      []byte `json:"to"`
	Replace bool   `json:"replace"`
}

// MarshalJSON keeps every byte of the paths.
func (m Move) MarshalJSON() ([]byte, error) {
	return json.Marshal(wireMove{[]byte(m.From), []byte(m.To), m.Replace})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (m *Move) UnmarshalJSON(data []byte) error {
	var w wireMove
	err := json.Unmarshal(data, &w)
	*m = Move{string(w.From), string(w.To), w.Replace}
	return err
}

type wireChange struct {
	Type  ChangeType `json:"type"`
	Path  []byte     `json:"path,omitempty"`
	From  []byte     `json:"from,omitempty"`
	IsDir bool       `json:"is_dir,omitempty"`
}

// MarshalJSON keeps every byte of the paths.
func (c Change) MarshalJSON() ([]byte, error) {
	return json.Marshal(wireChange{c.Type, []byte(c.Path), []byte(c.From), c.IsDir})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (c *Change) UnmarshalJSON(data []byte) error {
	var w wireChange
	err := json.Unmarshal(data, &w)
	*c = Change{w.Type, string(w.Path), string(w.From), w.IsDir}
	return err
}

type wireFileHead struct {
	Path []byte `json:"path"`
	Mode uint32 `json:"mode"`
	Size int64  `json:"size"`
}

// MarshalJSON keeps every byte of the path.
func (h FileHead) MarshalJSON() ([]byte, error) {
	return json.Marshal(wireFileHead{[]byte(h.Path), h.Mode, h.Size})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (h *FileHead) UnmarshalJSON(data []byte) error {
	var w wireFileHead
	err := json.Unmarshal(data, &w)
	*h = FileHead{string(w.Path), w.Mode, w.Size}
	return err
}
