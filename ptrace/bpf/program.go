package bpf

import "unsafe"

// Numbers of functions that the kernel lets programs call (linux/bpf.h).
const (
	helperClock         = 5   // bpf_ktime_get_ns
	helperTaskRegisters = 175 // bpf_task_pt_regs
	helperCopyFromTask  = 191 // bpf_copy_from_user_task
)

// request is what the program is asked for, and answers: it is in the table, as what is handed over in a call of bpf(2)
// is copied to memory that the kernel has to find first, and back.
type request struct {
	targets   uint32
	processor int32
	used      uint64 // bytes of the area that are taken
	now       uint64 // on the monotonic clock in ns, when the program has ended
}

const (
	requestTargets   = int16(unsafe.Offsetof(request{}.targets))
	requestProcessor = int16(unsafe.Offsetof(request{}.processor))
	requestUsed      = int16(unsafe.Offsetof(request{}.used))
	requestNow       = int16(unsafe.Offsetof(request{}.now))
)

// word is the size of a saved register.
const word = 8

// program is the reader, for a table with this descriptor. It goes through the slots: see doc.go, and Slot for what it
// reads there and writes. r6 is the slot, r7 the thread, r8 the slot's number, r9 the request. Nothing that is computed
// for one slot is in a register at the next: so the verifier finds all ways through the one to lead to the same state,
// and need not follow each of them through the other.
func program(l *layout, table int) []uint64 {
	c := &code{labels: make(map[string]int)}
	c.address(r9, table, requestStart)
	c.address(r6, table, 0)
	c.emit(opSet, r8, 0, 0, 0)

	c.label("slot")
	c.jump(opIfFrom, r8, 0, MaxTargets, "end")
	c.emit(opLoad4, r1, r9, requestTargets, 0)
	c.jump(opIfAtLeast, r8, r1, 0, "end")
	c.emit(opConstant4, r6, 0, slotOutcome, int32(Gone))
	c.emit(opLoad4, r1, r6, slotPID, 0)
	c.emit(opCall, 0, sourceFunction, 0, int32(l.find))
	c.jump(opIfZero, r0, 0, 0, "next")
	c.emit(opConstant4, r6, 0, slotOutcome, int32(Elsewhere))
	c.emit(opMove, r7, r0, 0, 0)
	c.emit(opLoad4, r1, r7, l.processor, 0)
	c.emit(opLoad4, r2, r9, requestProcessor, 0)
	c.jump(opIfNotEqual, r1, r2, 0, "release")
	c.firstLook(l)
	c.copyStack(table)
	c.secondLook(l)

	c.label("release")
	c.emit(opMove, r1, r7, 0, 0)
	c.emit(opCall, 0, sourceFunction, 0, int32(l.release))
	c.label("next")
	c.emit(opAddValue, r6, 0, 0, slotLength)
	c.emit(opAddValue, r8, 0, 0, 1)
	c.jump(opGo, 0, 0, 0, "slot")
	c.label("end")
	c.emit(opCall, 0, 0, 0, helperClock)
	c.emit(opStore8, r9, r0, requestNow, 0)
	c.emit(opSet, r0, 0, 0, 0)
	c.emit(opExit, 0, 0, 0, 0)
	return c.finish()
}

// firstLook is the first look at a thread: who it is, that it is off the processor, how often it has left one, and its
// registers.
func (c *code) firstLook(l *layout) {
	c.emit(opLoad8, r1, r7, l.started, 0)
	c.emit(opStore8, r6, r1, slotStarted, 0)
	c.emit(opLoad4, r1, r7, l.state, 0)
	c.emit(opStore4, r6, r1, slotState, 0)
	c.emit(opConstant4, r6, 0, slotOutcome, int32(Moved))
	c.emit(opLoad4, r1, r7, l.onProcessor, 0)
	c.jump(opIfNot, r1, 0, 0, "release")
	c.countSwitches(l)
	c.emit(opStore8, r6, r1, slotSwitches, 0)
	c.emit(opMove, r1, r7, 0, 0)
	c.emit(opCall, 0, 0, 0, helperTaskRegisters)
	for _, i := range savedRegisters {
		c.emit(opLoad8, r1, r0, int16(word*i), 0)
		c.emit(opStore8, r6, r1, int16(slotRegisters+word*i), 0)
	}
	c.emit(opLoad8, r3, r6, int16(slotRegisters+word*stackPointer), 0)
}

// copyStack copies from the red zone below the stack pointer, which r3 holds, to the stack's end.
func (c *code) copyStack(table int) {
	c.emit(opLoad8, r1, r6, slotRedZone, 0)
	c.emit(opSubtract, r3, r1, 0, 0)
	c.emit(opStore8, r6, r3, slotStart, 0)
	c.emit(opLoad8, r2, r6, slotEnd, 0)
	c.emit(opSubtract, r2, r3, 0, 0)
	c.emit(opLoad8, r1, r6, slotMost, 0)
	c.jump(opIfMost, r2, r1, 0, "short")
	c.emit(opMove, r2, r1, 0, 0)
	c.label("short")
	c.jump(opIfMostOf, r2, 0, MaxStack, "bounded") // the verifier knows no bound yet
	c.emit(opSet, r2, 0, 0, MaxStack)
	c.label("bounded")
	c.emit(opStore8, r6, r2, slotLengthOf, 0)
	c.emit(opConstant4, r6, 0, slotOutcome, int32(Full))
	c.emit(opLoad8, r5, r9, requestUsed, 0)
	c.jump(opIfFrom, r5, 0, areaLength-MaxStack, "release")
	c.emit(opStore8, r6, r5, slotAt, 0)
	c.address(r1, table, areaStart)
	c.emit(opAdd, r1, r5, 0, 0)
	c.emit(opMove, r4, r7, 0, 0)
	c.emit(opSet, r5, 0, 0, 0)
	c.emit(opCall, 0, 0, 0, helperCopyFromTask)
	c.emit(opConstant4, r6, 0, slotOutcome, int32(NoStack))
}

// secondLook judges whether the thread has run since the first look. r0 is not 0 if its stack was not readable.
func (c *code) secondLook(l *layout) {
	c.emit(opMove, r5, r0, 0, 0)
	c.emit(opLoad4, r1, r7, l.onProcessor, 0)
	c.jump(opIfNot, r1, 0, 0, "moved")
	c.countSwitches(l)
	c.emit(opLoad8, r2, r6, slotSwitches, 0)
	c.jump(opIfNotEqual, r1, r2, 0, "moved")
	c.jump(opIfNot, r5, 0, 0, "release")
	c.emit(opConstant4, r6, 0, slotOutcome, int32(Read))
	c.emit(opLoad8, r1, r9, requestUsed, 0)
	c.emit(opLoad8, r2, r6, slotLengthOf, 0)
	c.emit(opAdd, r1, r2, 0, 0)
	c.emit(opStore8, r9, r1, requestUsed, 0)
	c.jump(opGo, 0, 0, 0, "release")
	c.label("moved")
	c.emit(opConstant4, r6, 0, slotOutcome, int32(Moved))
}

// countSwitches loads how often the thread has left a processor into r1.
func (c *code) countSwitches(l *layout) {
	c.emit(opLoad8, r1, r7, l.left, 0)
	c.emit(opLoad8, r2, r7, l.preempted, 0)
	c.emit(opAdd, r1, r2, 0, 0)
}
