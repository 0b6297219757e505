package machine

import (
	"encoding/json"
	"fmt"
	"net"
	"time"
)

// qmp is one connection of QEMU's control protocol, made with a socket pair: there is no path that anybody else could open.
// One goroutine reads; commands are sent without waiting for their replies, since only events matter to the keeper.
type qmp struct {
	conn net.Conn
	dec  *json.Decoder
}

// qmpMessage is any line that QEMU sends.
type qmpMessage struct {
	QMP   json.RawMessage `json:"QMP"`
	Event string          `json:"event"`
	Data  struct {
		Reason string `json:"reason"`
	} `json:"data"`
	Error *struct {
		Desc string `json:"desc"`
	} `json:"error"`
	Return json.RawMessage `json:"return"`
}

// greet waits for QEMU's greeting, which comes when its devices are made, and enters command mode.
func greet(conn net.Conn, within time.Duration) (*qmp, error) {
	q := &qmp{conn: conn, dec: json.NewDecoder(conn)}
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		return nil, err
	}
	var m qmpMessage
	if err := q.dec.Decode(&m); err != nil || m.QMP == nil {
		return nil, fmt.Errorf("wait for QEMU's greeting: %w", err)
	}
	if err := q.send("qmp_capabilities"); err != nil {
		return nil, err
	}
	for {
		var m qmpMessage
		if err := q.dec.Decode(&m); err != nil {
			return nil, fmt.Errorf("enter QMP's command mode: %w", err)
		}
		if m.Error != nil {
			return nil, fmt.Errorf("enter QMP's command mode: %s", m.Error.Desc)
		}
		if m.Return != nil {
			return q, conn.SetDeadline(time.Time{})
		}
	}
}

func (q *qmp) send(command string) error {
	_, err := fmt.Fprintf(q.conn, `{"execute":%q}`+"\n", command)
	return err
}

// shutdownReason reads until QEMU goes away and returns the reason of its last SHUTDOWN event, "" when there was none
// (qapi/run-state.json, ShutdownCause).
func (q *qmp) shutdownReason() string {
	reason := ""
	for {
		var m qmpMessage
		if q.dec.Decode(&m) != nil {
			return reason
		}
		if m.Event == "SHUTDOWN" {
			reason = m.Data.Reason
		}
	}
}
