package guestwire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// AppendFileHead adds what stands before a file of a batch: four bytes of length,
// big-endian, and the head as JSON.
func AppendFileHead(to []byte, head FileHead) ([]byte, error) {
	text, err := json.Marshal(head)
	if err != nil {
		return nil, err
	}
	if len(text) > MaxFileHead {
		return nil, fmt.Errorf("head of a file has %d bytes, at most %d are sent", len(text), MaxFileHead)
	}
	to = binary.BigEndian.AppendUint32(to, uint32(len(text))) //nolint:gosec // bounded above
	return append(to, text...), nil
}

// ReadFileHead reads one. At the end of a batch it is io.EOF, amid a head
// io.ErrUnexpectedEOF.
func ReadFileHead(r io.Reader) (FileHead, error) {
	var head FileHead
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return head, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > MaxFileHead {
		return head, fmt.Errorf("head of a file has %d bytes, at most %d are read: %w", n, MaxFileHead, ErrProtocol)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		if err == io.EOF { //nolint:errorlint // as ReadFull gives it
			err = io.ErrUnexpectedEOF
		}
		return head, err
	}
	if err := json.Unmarshal(text, &head); err != nil || head.Size < 0 {
		return head, fmt.Errorf("head of a file makes no sense: %w", ErrProtocol)
	}
	return head, nil
}
