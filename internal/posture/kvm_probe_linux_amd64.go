package posture

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// KVMChild runs the probe on a device and writes its figures to w as JSON. It
// may never return: run it in a process of its own. An error is only one of
// writing; all other faults are in the figures.
func KVMChild(w io.Writer, device string) error {
	runtime.LockOSThread() // KVM binds a vCPU to its thread
	figures, err := probeKVM(device)
	if err != nil {
		figures.Fault = err.Error()
	}
	return json.NewEncoder(w).Encode(figures)
}

// ioctl numbers and structures of <linux/kvm.h>, x86.
const (
	kvmGetAPIVersion       = 0xAE00
	kvmCreateVM            = 0xAE01
	kvmGetVCPUMmapSize     = 0xAE04
	kvmCreateVCPU          = 0xAE41
	kvmSetUserMemoryRegion = 0x4020AE46
	kvmSetTSSAddr          = 0xAE47
	kvmRun                 = 0xAE80
	kvmSetRegs             = 0x4090AE82
	kvmGetSregs            = 0x8138AE83
	kvmSetSregs            = 0x4138AE84

	exitIO       = 2
	exitHLT      = 5
	exitShutdown = 8
	exitInternal = 17

	internalEmulation = 1 // KVM_INTERNAL_ERROR_EMULATION
)

type kvmMemoryRegion struct {
	slot, flags   uint32
	guestPhysAddr uint64
	memorySize    uint64
	userspaceAddr uint64
}

type kvmRegs struct {
	rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp uint64
	r8, r9, r10, r11, r12, r13, r14, r15   uint64
	rip, rflags                            uint64
}

type kvmSegment struct {
	base                           uint64
	limit                          uint32
	selector                       uint16
	typ, present, dpl, db, s, l, g uint8
	avl, unusable, padding         uint8
}

type kvmDtable struct {
	base    uint64
	limit   uint16
	padding [3]uint16
}

type kvmSregs struct {
	cs, ds, es, fs, gs, ss, tr, ldt     kvmSegment
	gdt, idt                            kvmDtable
	cr0, cr2, cr3, cr4, cr8, efer, apic uint64
	interrupts                          [4]uint64
}

// Where things lie in the probe guest's 2 MiB of memory.
const (
	guestMemory = 2 << 20
	guestPML4   = 0x1000
	guestPDPT   = 0x2000
	guestPD     = 0x3000
	guestCode   = 0x8000
	guestStack  = 0x20000
)

// The probe program, 64-bit code as a guest kernel runs it: a loop, then a loop
// of port writes, each of which leaves the guest, then a halt. The first loop
// holds what a processor does in about ten cycles and software is slow at:
// vector instructions (a translator calls a function for each), call and
// return (a translator looks up the target), memory (both walk a table), and
// plain arithmetic (an interpreter decodes each).
//
//	        out  0x10, al          ; "the loop starts"
//	loop:   call sub               ; 1
//	        add  [rsi], rax        ; 2
//	        psadbw xmm0..6, xmm7   ; 3 to 9
//	        imul rax, rax, 33      ; 10
//	        dec  rcx               ; 11
//	        jnz  loop              ; 12
//	        out  0x11, al          ; "the loop has ended"
//	exits:  out  0x12, al
//	        dec  rdx
//	        jnz  exits
//	        hlt
//	sub:    xor  rax, rcx          ; 13
//	        ret                    ; 14
var probeProgram = []byte{
	0xE6, 0x10,
	0xE8, 0x33, 0x00, 0x00, 0x00, // call +51
	0x48, 0x01, 0x06,
	0x66, 0x0F, 0xF6, 0xC7,
	0x66, 0x0F, 0xF6, 0xCF,
	0x66, 0x0F, 0xF6, 0xD7,
	0x66, 0x0F, 0xF6, 0xDF,
	0x66, 0x0F, 0xF6, 0xE7,
	0x66, 0x0F, 0xF6, 0xEF,
	0x66, 0x0F, 0xF6, 0xF7,
	0x48, 0x6B, 0xC0, 0x21,
	0x48, 0xFF, 0xC9,
	0x75, 0xD3, // -45
	0xE6, 0x11,
	0xE6, 0x12,
	0x48, 0xFF, 0xCA,
	0x75, 0xF9, // -7
	0xF4,
	0x90,
	0x48, 0x31, 0xC8,
	0xC3,
}

const (
	loopInstructions = 14
	probeRepeats     = 3
	portStart        = 0x10
	portEnd          = 0x11
	portExit         = 0x12
	probeExits       = 2000
	firstRounds      = 20_000      // 0.14 s where every instruction is interpreted at 2 MIPS
	maxRounds        = 256_000_000 // bounds the last round on any processor
	enoughLoop       = 100 * time.Millisecond
)

func ioctl(fd int, request, argument uintptr) (int, error) {
	for {
		r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, argument)
		if errno == unix.EINTR {
			continue // the runtime preempts threads by signals
		}
		if errno != 0 {
			return 0, errno
		}
		return int(r), nil
	}
}

// probeKVM runs the program with more and more rounds until the loop takes
// long enough to be measured, so that an interpreter is not kept busy for
// minutes and a fast processor is not measured on microseconds.
func probeKVM(device string) (kvmFigures, error) {
	var figures kvmFigures
	kvm, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return figures, fmt.Errorf("open %s: %w", device, err)
	}
	defer unix.Close(kvm) //nolint:errcheck // the process ends
	if figures.API, err = ioctl(kvm, kvmGetAPIVersion, 0); err != nil {
		return figures, fmt.Errorf("get KVM API version: %w", err)
	}
	if figures.API != kvmAPI {
		return figures, nil // the judge refuses it
	}
	program := probeProgram
	for rounds, measured := int64(firstRounds), 0; ; {
		loop, exits, err := probeOnce(kvm, program, rounds)
		if errors.Is(err, errEmulation) && !figures.Interpreted {
			figures.Interpreted = true
			program = plainProgram()
			continue
		}
		if err != nil {
			return figures, err
		}
		if loop < enoughLoop && rounds*8 <= maxRounds {
			rounds *= 8
			continue
		}
		figures.keepBest(rounds*loopInstructions, loop, exits)
		if measured++; measured == probeRepeats {
			return figures, nil
		}
	}
}

// keepBest keeps the fastest run: a busy host can only make a guest slower.
func (f *kvmFigures) keepBest(instructions int64, loop, exits time.Duration) {
	if f.LoopNanos == 0 || float64(instructions)/float64(loop.Nanoseconds()) > float64(f.Instructions)/float64(f.LoopNanos) {
		f.Instructions, f.LoopNanos = instructions, loop.Nanoseconds()
	}
	if f.ExitNanos == 0 || exits.Nanoseconds() < f.ExitNanos {
		f.Exits, f.ExitNanos = probeExits, exits.Nanoseconds()
	}
}

// errEmulation is KVM's word that it met an instruction which it had to
// interpret and could not. A processor would have run it without asking KVM.
var errEmulation = errors.New("run vCPU: KVM interprets guest code and does not know all of it")

// plainProgram is the program with its vector instructions made into nothing
// (4-byte no-operations), for a KVM that only interprets general instructions.
func plainProgram() []byte {
	plain := bytes.Clone(probeProgram)
	for at := range len(plain) - 3 {
		if bytes.HasPrefix(plain[at:], []byte{0x66, 0x0F, 0xF6}) {
			copy(plain[at:], []byte{0x0F, 0x1F, 0x40, 0x00})
		}
	}
	return plain
}

// probeOnce makes a machine, runs the program in it, and times both loops.
func probeOnce(kvm int, program []byte, rounds int64) (loop, exits time.Duration, err error) {
	vm, err := ioctl(kvm, kvmCreateVM, 0)
	if err != nil {
		return 0, 0, fmt.Errorf("create virtual machine: %w", err)
	}
	defer unix.Close(vm) //nolint:errcheck // nothing was written
	// Intel processors without unrestricted guests need a place for a TSS.
	if _, err := ioctl(vm, kvmSetTSSAddr, 0xFFFBD000); err != nil {
		return 0, 0, fmt.Errorf("set TSS address: %w", err)
	}
	memory, err := unix.Mmap(-1, 0, guestMemory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return 0, 0, fmt.Errorf("map guest memory: %w", err)
	}
	defer unix.Munmap(memory)                                      //nolint:errcheck // the process ends
	binary.LittleEndian.PutUint64(memory[guestPML4:], guestPDPT|3) // present, writable
	binary.LittleEndian.PutUint64(memory[guestPDPT:], guestPD|3)
	binary.LittleEndian.PutUint64(memory[guestPD:], 0x83) // one 2 MiB page at 0
	copy(memory[guestCode:], program)
	region := kvmMemoryRegion{memorySize: guestMemory, userspaceAddr: uint64(uintptr(unsafe.Pointer(&memory[0])))}
	if _, err := ioctl(vm, kvmSetUserMemoryRegion, uintptr(unsafe.Pointer(&region))); err != nil {
		return 0, 0, fmt.Errorf("give memory to the guest: %w", err)
	}
	vcpu, err := ioctl(vm, kvmCreateVCPU, 0)
	if err != nil {
		return 0, 0, fmt.Errorf("create vCPU: %w", err)
	}
	defer unix.Close(vcpu) //nolint:errcheck // nothing was written
	if err := setRegisters(vcpu, rounds); err != nil {
		return 0, 0, err
	}
	size, err := ioctl(kvm, kvmGetVCPUMmapSize, 0)
	if err != nil || size < 64 {
		return 0, 0, fmt.Errorf("get size of the run page: %d, %w", size, err)
	}
	run, err := unix.Mmap(vcpu, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return 0, 0, fmt.Errorf("map the run page: %w", err)
	}
	defer unix.Munmap(run) //nolint:errcheck // the process ends
	return runProbe(vcpu, run)
}

// setRegisters puts the vCPU into 64-bit mode at the start of the program.
func setRegisters(vcpu int, rounds int64) error {
	var sregs kvmSregs
	if _, err := ioctl(vcpu, kvmGetSregs, uintptr(unsafe.Pointer(&sregs))); err != nil {
		return fmt.Errorf("get system registers: %w", err)
	}
	sregs.cs = kvmSegment{limit: 0xFFFFFFFF, selector: 0x08, typ: 11, present: 1, s: 1, l: 1, g: 1}
	data := kvmSegment{limit: 0xFFFFFFFF, selector: 0x10, typ: 3, present: 1, s: 1, db: 1, g: 1}
	sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss = data, data, data, data, data
	sregs.cr0 = 0x80000033 // PG, NE, ET, MP, PE
	sregs.cr3 = guestPML4
	sregs.cr4 = 0x620  // PAE, OSFXSR, OSXMMEXCPT: vector instructions
	sregs.efer = 0x500 // LME, LMA
	if _, err := ioctl(vcpu, kvmSetSregs, uintptr(unsafe.Pointer(&sregs))); err != nil {
		return fmt.Errorf("set system registers: %w", err)
	}
	regs := kvmRegs{rip: guestCode, rsp: guestStack, rsi: guestStack + 64, rcx: uint64(rounds), rdx: probeExits, rflags: 2}
	if _, err := ioctl(vcpu, kvmSetRegs, uintptr(unsafe.Pointer(&regs))); err != nil {
		return fmt.Errorf("set registers: %w", err)
	}
	return nil
}

// threadTime is the processor time of this thread, guest code included: other
// programs on a busy host do not count as slowness of KVM.
func threadTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		return 0 // the run is then refused
	}
	return time.Duration(now.Nano())
}

// runProbe drives the vCPU from exit to exit. struct kvm_run: exit_reason at
// byte 8, the io exit's fields from byte 32: direction, size, port (uint16 at 34).
func runProbe(vcpu int, run []byte) (loop, exits time.Duration, err error) {
	var started, ended time.Duration
	seen := 0
	for {
		if _, err := ioctl(vcpu, kvmRun, 0); err != nil {
			return 0, 0, fmt.Errorf("run vCPU: %w", err)
		}
		reason := binary.LittleEndian.Uint32(run[8:])
		switch reason {
		case exitIO:
			switch port := binary.LittleEndian.Uint16(run[34:]); port {
			case portStart:
				started = threadTime()
			case portEnd:
				ended = threadTime()
				loop = ended - started
			case portExit:
				if seen++; seen > probeExits {
					return 0, 0, errors.New("run vCPU: the guest repeats itself")
				}
			default:
				return 0, 0, fmt.Errorf("run vCPU: the guest wrote to port %#x, which the program has not", port)
			}
		case exitHLT:
			if started == 0 || ended == 0 || seen != probeExits {
				return 0, 0, fmt.Errorf("run vCPU: the guest halted after %d of %d exits", seen, probeExits)
			}
			return loop, threadTime() - ended, nil
		case exitShutdown:
			return 0, 0, errors.New("run vCPU: the guest shut down (triple fault)")
		case exitInternal:
			if code := binary.LittleEndian.Uint32(run[32:]); code != internalEmulation {
				return 0, 0, fmt.Errorf("run vCPU: KVM's internal error %d", code)
			}
			return 0, 0, errEmulation
		default:
			return 0, 0, fmt.Errorf("run vCPU: unexpected exit %d", reason)
		}
	}
}
