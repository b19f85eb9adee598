package bpf

import "unsafe"

// Numbers of functions that the kernel lets programs call (linux/bpf.h).
const (
	helperNow           = 5   // bpf_ktime_get_ns
	helperRandom        = 7   // bpf_get_prandom_u32
	helperReadKernel    = 113 // bpf_probe_read_kernel
	helperWho           = 14  // bpf_get_current_pid_tgid
	helperReadUser      = 112 // bpf_probe_read_user
	helperRingOutput    = 130 // bpf_ringbuf_output
	helperCurrent       = 158 // bpf_get_current_task_btf
	helperTimerInit     = 169 // bpf_timer_init
	helperTimerCallback = 170 // bpf_timer_set_callback
	helperTimerStart    = 171 // bpf_timer_start
	helperTimerCancel   = 172 // bpf_timer_cancel
	helperTaskRegisters = 175 // bpf_task_pt_regs
	helperCopyFromTask  = 191 // bpf_copy_from_user_task
)

// request is what the programs are asked for, and answer. It is in the reader's table: what is handed over in a call of
// bpf(2) is copied to memory that the kernel has to find first, and back.
type request struct {
	targets   uint32
	processor int32
	used      uint64 // bytes of the area that are taken
	wake      uint32 // somebody is to be read by a call, or a Clock has no room
	_         uint32
}

const (
	requestTargets   = int16(unsafe.Offsetof(request{}.targets))
	requestProcessor = int16(unsafe.Offsetof(request{}.processor))
	requestUsed      = int16(unsafe.Offsetof(request{}.used))
	requestWake      = int16(unsafe.Offsetof(request{}.wake))
)

// word is the size of a saved register.
const word = 8

// eachSlot calls a function, "slot", for each of them, with the slot's number and what is kept at keptWho.
func (c *code) eachSlot(table int) {
	c.address(r6, table, requestStart)
	c.emit(opSet, r7, 0, 0, 0)
	c.label("each")
	c.jump(opIfFrom, r7, 0, MaxTargets, "end")
	c.emit(opLoad4, r1, r6, requestTargets, 0)
	c.jump(opIfAtLeast, r7, r1, 0, "end")
	c.emit(opMove, r1, r7, 0, 0)
	c.emit(opLoad8, r2, r10, keptWho, 0)
	c.call("slot")
	c.emit(opAddValue, r7, 0, 0, 1)
	c.jump(opGo, 0, 0, 0, "each")
	c.label("end")
}

// slotFunction is that function: r6 is the slot, r8 its number, r9 the request. Body is what is done with it, and goes
// on to the label "next". The verifier looks at it once, and not for each slot anew, which takes a tenth of a second.
func (c *code) slotFunction(table int, body func()) functionInfo {
	begin := len(c.words)
	c.label("slot")
	c.emit(opMove, r8, r1, 0, 0)
	c.emit(opStore8, r10, r2, keptWho, 0)
	c.jump(opIfFrom, r8, 0, MaxTargets, "next") // it is less
	c.address(r9, table, requestStart)
	c.address(r6, table, 0)
	c.emit(opMove, r1, r8, 0, 0)
	c.emit(opShift, r1, 0, 0, slotExponent)
	c.emit(opAdd, r6, r1, 0, 0)
	body()
	c.label("next")
	c.emit(opSet, r0, 0, 0, 0)
	c.emit(opExit, 0, 0, 0, 0)
	return functionInfo{uint32(begin), typeSlot}
}

// findThread looks for the slot's thread, and goes elsewhere if there is none. It is in r7 then, and must be released.
func (c *code) findThread(l *layout, none string) {
	c.emit(opLoad4, r1, r6, slotPID, 0)
	c.emit(opCall, 0, sourceFunction, 0, int32(l.find))
	c.jump(opIfZero, r0, 0, 0, none)
	c.emit(opMove, r7, r0, 0, 0)
}

func (c *code) releaseThread(l *layout) {
	c.emit(opMove, r1, r7, 0, 0)
	c.emit(opCall, 0, sourceFunction, 0, int32(l.release))
}

// readerProgram is the reader, for a table with this descriptor: it reads the threads of the slots that are wanted.
// See doc.go, and Slot for what it reads there and writes.
func readerProgram(l *layout, table int, area uint64) ([]uint64, []functionInfo) {
	c := newCode(area)
	c.emit(opSet, r1, 0, 0, 0)
	c.emit(opStore8, r10, r1, keptWho, 0)
	c.eachSlot(table)
	c.emit(opSet, r0, 0, 0, 0)
	c.emit(opExit, 0, 0, 0, 0)
	slot := c.slotFunction(table, func() {
		c.emit(opConstant4, r6, 0, slotOutcome, int32(Unwanted))
		c.emit(opLoad4, r1, r6, slotWanted, 0)
		c.jump(opIfZero, r1, 0, 0, "next")
		c.emit(opConstant4, r6, 0, slotWanted, 0)
		c.emit(opLoad4, r1, r6, slotAgain, 0)
		c.emit(opStore4, r6, r1, slotBefore, 0)
		c.emit(opConstant4, r6, 0, slotAgain, 0)
		c.emit(opConstant4, r6, 0, slotOutcome, int32(Gone))
		c.findThread(l, "next")
		c.emit(opConstant4, r6, 0, slotOutcome, int32(Elsewhere))
		c.load(r1, l.processor)
		c.emit(opLoad4, r2, r9, requestProcessor, 0)
		c.jump(opIfNotEqual, r1, r2, 0, "release")
		c.firstLook(l)
		c.copyStack(table)
		c.secondLook(l)
		c.label("release")
		c.releaseThread(l)
	})
	return c.finish(), []functionInfo{{0, typeFunction}, slot}
}

// firstLook is the first look at a thread: who it is, that it is off the processor, how often it has left one, and its
// registers.
func (c *code) firstLook(l *layout) {
	c.writeIdentity(l, r6)
	c.emit(opConstant4, r6, 0, slotOutcome, int32(Moved))
	c.load(r1, l.onProcessor)
	c.jump(opIfNot, r1, 0, 0, "release")
	c.countSwitches(l)
	c.emit(opStore8, r6, r1, slotSwitches, 0)
	c.saveRegisters(r6, "release")
}

// writeIdentity writes who a thread is, and whether it could run.
func (c *code) writeIdentity(l *layout, to register) {
	c.load(r1, l.started)
	c.emit(opStore8, to, r1, slotStarted, 0)
	c.load(r1, l.state)
	c.emit(opStore4, to, r1, slotState, 0)
}

// saveRegisters writes the registers with which a thread will go on. It goes elsewhere if the thread is on its way
// back from a signal: its registers are of before the signal in part, and those of the system call that it is in lead
// nowhere.
func (c *code) saveRegisters(to register, elsewhere string) {
	c.emit(opMove, r1, r7, 0, 0)
	c.emit(opCall, 0, 0, 0, helperTaskRegisters)
	for _, i := range savedRegisters {
		c.emit(opLoad8, r1, r0, int16(word*i), 0)
		c.emit(opStore8, to, r1, int16(slotRegisters+word*i), 0)
	}
	c.emit(opLoad8, r1, r0, word*systemCall, 0)
	c.jump(opIfZero, r1, 0, signalReturn, elsewhere)
}

// measure writes where a stack begins, from the red zone below the stack pointer, and how much of it is copied, up to
// its end; r3 and r2 hold that. Both are bounded by what the slot asks for.
func (c *code) measure(to register) {
	c.emit(opLoad8, r3, to, int16(slotRegisters+word*stackPointer), 0)
	c.emit(opLoad4, r1, r6, slotRedZone, 0)
	c.emit(opSubtract, r3, r1, 0, 0)
	c.emit(opStore8, to, r3, slotStart, 0)
	c.emit(opLoad8, r2, r6, slotEnd, 0)
	c.emit(opSubtract, r2, r3, 0, 0)
	c.emit(opLoad4, r1, r6, slotMost, 0)
	short, bounded := c.unique("short"), c.unique("bounded")
	c.jump(opIfMost, r2, r1, 0, short)
	c.emit(opMove, r2, r1, 0, 0)
	c.label(short)
	c.jump(opIfMostOf, r2, 0, MaxStack, bounded) // the verifier knows no bound yet
	c.emit(opSet, r2, 0, 0, MaxStack)
	c.label(bounded)
	c.emit(opStore8, to, r2, slotLengthOf, 0)
}

// copyStack copies the stack of a thread that is off the processor.
func (c *code) copyStack(table int) {
	c.measure(r6)
	c.emit(opConstant4, r6, 0, slotOutcome, int32(Full))
	c.emit(opLoad8, r5, r9, requestUsed, 0)
	c.jump(opIfFrom, r5, 0, c.most, "release")
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
	c.load(r1, l.onProcessor)
	c.jump(opIfNot, r1, 0, 0, "moved")
	c.countSwitches(l)
	c.emit(opLoad8, r2, r6, slotSwitches, 0)
	c.jump(opIfNotEqual, r1, r2, 0, "moved")
	c.jump(opIfNot, r5, 0, 0, "release")
	c.emit(opConstant4, r6, 0, slotOutcome, int32(Read))
	c.emit(opConstant4, r6, 0, slotKnown, knownRead)
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
	c.load(r1, l.left)
	c.load(r2, l.preempted)
	c.emit(opAdd, r1, r2, 0, 0)
}
