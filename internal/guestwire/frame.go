package guestwire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// ErrProtocol means that the agent broke the protocol: whatever it says from
// here on is worth nothing, and the sandbox is ended.
var ErrProtocol = errors.New("guest agent broke the protocol")

// FrameType says what a frame carries.
type FrameType byte

// The frame types. A reply to Start or Pull is one StartedFrame, then any number
// of Stdout and Stderr frames, then at most one ExitFrame, which is last and says
// that no output follows.
const (
	StdoutFrame  FrameType = 1 // payload: bytes of stdout, the first of them at Offset
	StderrFrame  FrameType = 2
	ExitFrame    FrameType = 3 // payload: Exit as JSON, Offset 0
	StartedFrame FrameType = 4 // payload: Started as JSON, Offset 0
)

// Frame is one piece of a Pull reply: on the wire a byte of type, four of
// length and eight of offset, both big-endian, then the payload. An Offset
// beyond what was asked for means that the agent let older bytes fall.
type Frame struct {
	Type    FrameType
	Offset  int64
	Payload []byte
}

const frameHeader = 1 + 4 + 8

// WriteFrame writes one frame.
func WriteFrame(w io.Writer, f Frame) error {
	if len(f.Payload) > MaxFramePayload {
		return fmt.Errorf("write frame: payload of %d bytes is over %d", len(f.Payload), MaxFramePayload)
	}
	head := make([]byte, frameHeader)
	head[0] = byte(f.Type)
	binary.BigEndian.PutUint32(head[1:5], uint32(len(f.Payload))) //nolint:gosec // bounded above
	binary.BigEndian.PutUint64(head[5:13], uint64(f.Offset))      //nolint:gosec // offsets are never negative
	_, err := w.Write(head)
	if err == nil && len(f.Payload) > 0 {
		_, err = w.Write(f.Payload) // apart from its head: a copy of 64 KiB costs more than a second call
	}
	if err != nil {
		return fmt.Errorf("write frame: %w", err)
	}
	return nil
}

// ReadFrame reads one frame. It returns io.EOF at a clean end, and ErrProtocol
// for an unknown type, a payload over MaxFramePayload, a negative offset or a
// frame that is cut short.
func ReadFrame(r io.Reader) (Frame, error) {
	var head [frameHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return Frame{}, io.EOF
		}
		return Frame{}, fmt.Errorf("read frame header: %w", cut(err))
	}
	f := Frame{Type: FrameType(head[0]), Offset: int64(binary.BigEndian.Uint64(head[5:13]))} //nolint:gosec // checked below
	size := binary.BigEndian.Uint32(head[1:5])
	if f.Type < StdoutFrame || f.Type > StartedFrame || size > MaxFramePayload || f.Offset < 0 {
		return Frame{}, fmt.Errorf("read frame: type %d, %d bytes, offset %d: %w", head[0], size, f.Offset, ErrProtocol)
	}
	f.Payload = make([]byte, size)
	if _, err := io.ReadFull(r, f.Payload); err != nil {
		return Frame{}, fmt.Errorf("read frame payload: %w", cut(err))
	}
	return f, nil
}

// cut tells a frame that ended too early (the agent's doing) from a broken
// connection (which a repeat may mend).
func cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("frame is cut short: %w", ErrProtocol)
	}
	return err
}

// DecodeExit reads the payload of an ExitFrame strictly: exactly one of a code
// 0..255 and a signal's name, and offsets that are not negative.
func DecodeExit(payload []byte) (Exit, error) {
	var e Exit
	if err := json.Unmarshal(payload, &e); err != nil {
		return Exit{}, fmt.Errorf("decode exit: %w", ErrProtocol)
	}
	codeOK := e.ExitCode != nil && *e.ExitCode >= 0 && *e.ExitCode <= 255 && e.Signal == ""
	signalOK := e.ExitCode == nil && KnownSignal(e.Signal)
	if !codeOK && !signalOK || e.StdoutBytes < 0 || e.StderrBytes < 0 {
		return Exit{}, fmt.Errorf("decode exit: %w", ErrProtocol)
	}
	return e, nil
}

// DecodeStarted reads the payload of a StartedFrame.
func DecodeStarted(payload []byte) (Started, error) {
	var s Started
	if err := json.Unmarshal(payload, &s); err != nil || s.PID <= 1 {
		return Started{}, fmt.Errorf("decode started: %w", ErrProtocol)
	}
	return s, nil
}
