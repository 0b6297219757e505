package httpapi

import (
	"encoding/json"
	"testing"

	"github.com/microvmd/microvm/internal/execution"
)

func TestDecodeResize(t *testing.T) {
	for text, want := range map[string]any{
		`{"type":"resize","rows":24,"cols":80}`:            execution.Size{Rows: 24, Cols: 80},
		` { "cols" : 1000, "rows" : 1, "type":"resize" } `: execution.Size{Rows: 1, Cols: 1000},
		``:                                      notAnObject,
		`ls`:                                    notAnObject,
		`null`:                                  notAnObject,
		`[]`:                                    notAnObject,
		`"resize"`:                              notAnObject,
		`{"type":"resize","rows":24,"cols"`:     notAnObject,
		`{"type":"resize","rows":1,"cols":1}{}`: notAnObject,
		`{"type":"resize","rows":1,"rows":2,"cols":1}`: notAnObject, // which of the two?
		"{\"type\":\"\xff\",\"rows\":1,\"cols\":1}":    notAnObject,
		`{}`:                                                     notAResize,
		`{"type":"resize"}`:                                      notAResize,
		`{"type":"stdin","rows":1,"cols":1}`:                     notAResize,
		`{"type":1,"rows":1,"cols":1}`:                           notAResize,
		`{"Type":"resize","rows":1,"cols":1}`:                    notAResize,
		`{"type":"resize","Rows":1,"cols":1}`:                    notAResize,
		`{"type":"resize","rows":0,"cols":1}`:                    notAResize,
		`{"type":"resize","rows":1,"cols":1001}`:                 notAResize,
		`{"type":"resize","rows":-1,"cols":1}`:                   notAResize,
		`{"type":"resize","rows":1.5,"cols":1}`:                  notAResize,
		`{"type":"resize","rows":"1","cols":1}`:                  notAResize,
		`{"type":"resize","rows":null,"cols":1}`:                 notAResize,
		`{"type":"resize","rows":1,"cols":1,"x":1}`:              notAResize,
		`{"type":"resize","rows":99999999999999999999,"cols":1}`: notAResize,
	} {
		size, how := decodeResize([]byte(text))
		if how == nil && any(size) != want || how != nil && any(how) != want {
			t.Errorf("%s: %+v %v", text, size, how)
		}
	}
}

// TestClosingsFit: RFC 6455 leaves 123 bytes for a reason.
func TestClosingsFit(t *testing.T) {
	for _, how := range []*closing{notAnObject, notAResize, tooLong, endDetached, endOver, endVanished, endUnread, endGoing} {
		if len(how.reason) > 123 {
			t.Errorf("%d bytes: %s", len(how.reason), how.reason)
		}
	}
}

// FuzzResize: whatever a client sends is a size within bounds or one of the two
// refusals, and what is taken says nothing but that size.
func FuzzResize(f *testing.F) {
	for _, text := range []string{`{"type":"resize","rows":24,"cols":80}`, `{"type":"resize","rows":1,"rows":2}`, `[[[[`, `null`, "\xff", `{"type":"resize","rows":1e2,"cols":1}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		size, how := decodeResize(message)
		if how != nil {
			if how != notAnObject && how != notAResize || (size != execution.Size{}) {
				t.Fatalf("%v %v", size, how)
			}
			return
		}
		var plain map[string]any
		if err := json.Unmarshal(message, &plain); err != nil {
			t.Fatal(err)
		}
		if len(plain) != 3 || plain["type"] != "resize" || plain["rows"] != float64(size.Rows) || plain["cols"] != float64(size.Cols) ||
			size.Rows < 1 || size.Rows > 1000 || size.Cols < 1 || size.Cols > 1000 {
			t.Fatalf("%s was taken for %+v", message, size)
		}
	})
}
