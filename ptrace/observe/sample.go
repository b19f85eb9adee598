package observe

import (
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/snapshot"
)

// sample is the content of one PERF_RECORD_SAMPLE of a thread.
type sample struct {
	registers []byte // in the layout of NT_PRSTATUS
	sp        uint64
	stack     []byte // from sp
}

// perfRegister is a general register: its number in perf's masks (asm/perf_regs.h), and the number of its word in
// NT_PRSTATUS.
type perfRegister struct{ number, word int }

// perfMask returns the set of the registers in perfRegisters, as a mask of perf's register numbers.
func perfMask() (mask uint64) {
	for _, r := range perfRegisters {
		mask |= 1 << r.number
	}
	return mask
}

// parseRing finds the sample among the records of a ring (perf_event_open(2), "MMAP layout"). It returns errNoSample
// if there is none.
func parseRing(p []byte) (*sample, error) {
	const header = 8
	for len(p) >= header {
		kind, size := binary.NativeEndian.Uint32(p), int(binary.NativeEndian.Uint16(p[6:]))
		if size < header || size > len(p) {
			return nil, fmt.Errorf("perf record of %d bytes among %d", size, len(p))
		}
		if kind == unix.PERF_RECORD_SAMPLE {
			return parseSample(p[header:size])
		}
		p = p[size:]
	}
	return nil, errNoSample
}

// parseSample parses a record that has the data of PERF_SAMPLE_TID, _REGS_USER and _STACK_USER, in this order. errNoSample means
// that the record has no registers of user mode, for example because the thread is ending.
func parseSample(p []byte) (*sample, error) {
	next := func() (value uint64, ok bool) {
		if len(p) < 8 {
			return 0, false
		}
		value, p = binary.NativeEndian.Uint64(p), p[8:]
		return value, true
	}
	short := fmt.Errorf("perf sample of %d bytes is too short", len(p))
	_, ok1 := next() // process and thread
	abi, ok2 := next()
	switch {
	case !ok1 || !ok2:
		return nil, short
	case abi == unix.PERF_SAMPLE_REGS_ABI_NONE:
		return nil, errNoSample
	case abi != unix.PERF_SAMPLE_REGS_ABI_64:
		return nil, fmt.Errorf("perf sample of a thread with ABI %d", abi)
	}
	s := &sample{registers: make([]byte, snapshot.PRStatusSize)}
	for _, r := range perfRegisters {
		value, ok := next()
		if !ok {
			return nil, short
		}
		binary.NativeEndian.PutUint64(s.registers[8*r.word:], value)
	}
	var registers [snapshot.MaxRegisters]byte
	s.sp, _ = snapshot.StackPointer(&registers, copy(registers[:], s.registers))
	size, ok := next()
	if !ok || size > uint64(len(p)) {
		return nil, short
	}
	if size == 0 {
		return s, nil
	}
	stack := p[:size]
	p = p[size:]
	copied, ok := next() // the rest of the stack was not readable
	if !ok || copied > size {
		return nil, short
	}
	s.stack = slices.Clone(stack[:copied])
	return s, nil
}
