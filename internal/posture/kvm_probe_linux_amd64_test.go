package posture

import (
	"bytes"
	"testing"
	"unsafe"
)

// TestStructuresHaveTheKernelsSizes: the ioctl numbers carry the sizes of
// their structures (asm-generic/ioctl.h: bits 16 to 29).
func TestStructuresHaveTheKernelsSizes(t *testing.T) {
	size := func(request uintptr) uintptr { return request >> 16 & 0x3FFF }
	if got, want := unsafe.Sizeof(kvmRegs{}), size(kvmSetRegs); got != want {
		t.Errorf("kvmRegs has %d bytes, want %d", got, want)
	}
	if got, want := unsafe.Sizeof(kvmSregs{}), size(kvmSetSregs); got != want {
		t.Errorf("kvmSregs has %d bytes, want %d", got, want)
	}
	if got, want := unsafe.Sizeof(kvmMemoryRegion{}), size(kvmSetUserMemoryRegion); got != want {
		t.Errorf("kvmMemoryRegion has %d bytes, want %d", got, want)
	}
}

// TestPlainProgram: same length and jumps, without vector instructions.
func TestPlainProgram(t *testing.T) {
	plain := plainProgram()
	if len(plain) != len(probeProgram) || bytes.Contains(plain, []byte{0x0F, 0xF6}) {
		t.Errorf("plain program is % x", plain)
	}
	if n := bytes.Count(plain, []byte{0x0F, 0x1F, 0x40, 0x00}); n != 7 {
		t.Errorf("%d no-operations, want 7", n)
	}
	if !bytes.Equal(plain[38:], probeProgram[38:]) || !bytes.Equal(plain[:10], probeProgram[:10]) {
		t.Error("something else was changed")
	}
}
