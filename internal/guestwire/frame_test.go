package guestwire

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"math"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

// Property tests run 250 cases unless the command line says otherwise.
func init() { _ = flag.Set("rapid.checks", "250") }

func TestFramesComeBackAsWritten(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var wire bytes.Buffer
		var want []Frame
		for range rapid.IntRange(0, 5).Draw(t, "frames") {
			f := Frame{
				Type:    rapid.SampledFrom([]FrameType{StdoutFrame, StderrFrame, ExitFrame, StartedFrame}).Draw(t, "type"),
				Offset:  rapid.Int64Range(0, math.MaxInt64).Draw(t, "offset"),
				Payload: rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "payload"),
			}
			want = append(want, f)
			if err := WriteFrame(&wire, f); err != nil {
				t.Fatal(err)
			}
		}
		in := iotest.OneByteReader(bytes.NewReader(wire.Bytes()))
		for _, f := range want {
			got, err := ReadFrame(in)
			if err != nil || got.Type != f.Type || got.Offset != f.Offset || !bytes.Equal(got.Payload, f.Payload) {
				t.Fatalf("got %+v, %v; want %+v", got, err, f)
			}
		}
		if _, err := ReadFrame(in); !errors.Is(err, io.EOF) {
			t.Fatalf("at the end: %v", err)
		}
		if cut := wire.Len(); cut > 0 {
			at := rapid.IntRange(0, cut-1).Draw(t, "cut")
			in := bytes.NewReader(wire.Bytes()[:at])
			var err error
			for err == nil {
				_, err = ReadFrame(in)
			}
			if !errors.Is(err, io.EOF) && !errors.Is(err, ErrProtocol) {
				t.Fatalf("cut at %d: %v", at, err)
			}
		}
	})
}

func TestFrameBounds(t *testing.T) {
	t.Parallel()
	if err := WriteFrame(io.Discard, Frame{Type: StdoutFrame, Payload: make([]byte, MaxFramePayload+1)}); err == nil {
		t.Error("a payload over the bound was written")
	}
	head := func(kind byte, size uint32, offset uint64) []byte {
		return []byte{
			kind, byte(size >> 24), byte(size >> 16), byte(size >> 8), byte(size),
			byte(offset >> 56), byte(offset >> 48), byte(offset >> 40), byte(offset >> 32), byte(offset >> 24), byte(offset >> 16), byte(offset >> 8), byte(offset),
		}
	}
	for name, text := range map[string][]byte{
		"type 0": head(0, 0, 0), "type 5": head(5, 0, 0), "long": head(1, MaxFramePayload+1, 0), "longest": head(1, math.MaxUint32, 0),
		"negative": head(1, 0, 1<<63), "no payload": head(1, 1, 0), "half a header": head(1, 0, 0)[:7],
	} {
		if _, err := ReadFrame(bytes.NewReader(text)); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	broken := errors.New("broken connection")
	if _, err := ReadFrame(io.MultiReader(bytes.NewReader(head(1, 5, 0)), iotest.ErrReader(broken))); !errors.Is(err, broken) || errors.Is(err, ErrProtocol) {
		t.Errorf("a broken connection is no broken protocol: %v", err)
	}
}

func TestDecodeExit(t *testing.T) {
	t.Parallel()
	for _, good := range []string{
		`{"exit_code":0}`, `{"exit_code":255,"oom_killed":true}`, `{"exit_code":null,"signal":"SIGKILL"}`, `{"signal":"SIGRT32","stdout_bytes":5}`,
	} {
		if _, err := DecodeExit([]byte(good)); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{
		``, `null`, `{}`, `[]`, `{"exit_code":-1}`, `{"exit_code":256}`, `{"exit_code":1,"signal":"SIGKILL"}`, `{"signal":""}`, `{"signal":"SIGRT33"}`,
		`{"signal":"9"}`, `{"exit_code":0,"stdout_bytes":-1}`, `{"exit_code":0,"stderr_bytes":-1}`, `{"exit_code":1.5}`, `{"exit_code":0}{}`,
	} {
		if e, err := DecodeExit([]byte(bad)); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %+v %v", bad, e, err)
		}
	}
}

func TestDecodeStarted(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		`{"pid":2}`: 2, `{"pid":4194304}`: 4194304, `{"pid":7,"more":true}`: 7,
		``: 0, `null`: 0, `{}`: 0, `[]`: 0, `{"pid":1}`: 0, `{"pid":0}`: 0, `{"pid":-2}`: 0, `{"pid":"2"}`: 0, `{"pid":2.5}`: 0, `{"pid":2}{}`: 0,
	} {
		s, err := DecodeStarted([]byte(text))
		if s.PID != want || errors.Is(err, ErrProtocol) != (want == 0) {
			t.Errorf("%s: %+v %v", text, s, err)
		}
	}
}

func TestSignalNames(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 64; n++ {
		name := SignalName(n)
		if name == "" || !KnownSignal(name) {
			t.Errorf("signal %d: %q", n, name)
		}
		if number, ok := SignalNumber(name); n < 32 && (!ok || number != n) {
			t.Errorf("%s: %d %v", name, number, ok)
		}
	}
	for _, n := range []int{-1, 0, 65} {
		if name := SignalName(n); name != "" {
			t.Errorf("signal %d: %q", n, name)
		}
	}
}

func FuzzReadFrame(f *testing.F) {
	var wire bytes.Buffer
	_ = WriteFrame(&wire, Frame{Type: StartedFrame, Payload: []byte(`{"pid":7}`)})
	_ = WriteFrame(&wire, Frame{Type: StdoutFrame, Offset: 7, Payload: []byte("hello")})
	_ = WriteFrame(&wire, Frame{Type: ExitFrame, Payload: []byte(`{"exit_code":0}`)})
	f.Add(wire.Bytes())
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{2, 0, 0, 0, 1, 0x80, 0, 0, 0, 0, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, wire []byte) {
		in := bytes.NewReader(wire)
		var again bytes.Buffer
		for {
			frame, err := ReadFrame(in)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				if !errors.Is(err, ErrProtocol) {
					t.Fatal(err)
				}
				return
			}
			if err := WriteFrame(&again, frame); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(again.Bytes(), wire) {
			t.Fatal("another text was written than read")
		}
	})
}

func FuzzDecodeExit(f *testing.F) {
	f.Add([]byte(`{"exit_code":0,"signal":"","oom_killed":false,"stdout_bytes":1,"stderr_bytes":0}`))
	f.Add([]byte(`{"exit_code":null,"signal":"SIGTERM"}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		exit, err := DecodeExit(payload)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatal(err)
			}
			return
		}
		text, err := json.Marshal(exit)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeExit(text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	})
}

func FuzzDecodeStarted(f *testing.F) {
	f.Add([]byte(`{"pid":7}`))
	f.Add([]byte(`{"pid":1}`))
	f.Add([]byte(`{"pid":1e3}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		s, err := DecodeStarted(payload)
		if (err == nil) != (s.PID > 1) || err != nil && !errors.Is(err, ErrProtocol) {
			t.Fatalf("%+v %v", s, err)
		}
	})
}
