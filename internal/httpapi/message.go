package httpapi

import (
	"encoding/json"

	"github.com/coder/websocket"

	"github.com/microvmd/microvm/internal/execution"
	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/guestwire"
)

// closing is why a terminal's socket closes, as its close frame tells it: reason
// is our own words, at most 123 bytes (RFC 6455, 5.5).
type closing struct {
	code   websocket.StatusCode
	reason string
	fault  *fault.Error // for the log; nil where nothing failed
}

func (c *closing) Error() string { return c.reason }

// The reasons for which a client's message closes the socket.
var (
	notAnObject = &closing{code: websocket.StatusInvalidFramePayloadData, reason: `a text message must be one JSON object in UTF-8, such as {"type":"resize","rows":24,"cols":80}`}
	notAResize  = &closing{code: websocket.StatusPolicyViolation, reason: `the one text message taken is {"type":"resize","rows":R,"cols":C}, with 1 to 1000 for R and C`}
	tooLong     = &closing{code: websocket.StatusMessageTooBig, reason: "a message may have 65536 bytes; send it in pieces"}
)

// decodeResize reads a text message of a client. As everywhere in the API,
// unknown fields, and names that differ in case, are refused.
func decodeResize(message []byte) (execution.Size, *closing) {
	if checkJSON(message) != nil {
		return execution.Size{}, notAnObject
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(message, &fields); err != nil || fields == nil {
		return execution.Size{}, notAnObject
	}
	var kind string
	if json.Unmarshal(fields["type"], &kind) != nil || kind != "resize" || len(fields) != 3 {
		return execution.Size{}, notAResize
	}
	var size execution.Size
	for name, to := range map[string]*int{"rows": &size.Rows, "cols": &size.Cols} {
		if json.Unmarshal(fields[name], to) != nil || *to < 1 || *to > guestwire.MaxTerminal {
			return execution.Size{}, notAResize
		}
	}
	return size, nil
}
