package bpf

import "unsafe"

// notes is the head of the table in which a Clock's program notes threads.
type notes struct {
	noted  uint32
	missed uint32 // for want of room, because it was returning from a signal, or began to run
	used   uint64 // bytes of the area that are taken
	period uint64 // of the timer, in ns; 0: it is to stand still
	first  uint64 // until it goes off for the first time
	until  uint64 // the moment on CLOCK_MONOTONIC, in ns, from which on it stands still whatever else is said
	direct uint64 // where the kernel has mapped all memory; 0: unknown
	probe  uint64 // not 0: this of the caller's memory is to be copied instead, as it is of others
	task   uint64 // the caller's struct task_struct
}

const (
	notesNoted  = int16(unsafe.Offsetof(notes{}.noted))
	notesMissed = int16(unsafe.Offsetof(notes{}.missed))
	notesUsed   = int16(unsafe.Offsetof(notes{}.used))
	notesPeriod = int16(unsafe.Offsetof(notes{}.period))
	notesFirst  = int16(unsafe.Offsetof(notes{}.first))
	notesUntil  = int16(unsafe.Offsetof(notes{}.until))
	notesDirect = int16(unsafe.Offsetof(notes{}.direct))
	notesProbe  = int16(unsafe.Offsetof(notes{}.probe))
	notesTask   = int16(unsafe.Offsetof(notes{}.task))

	// maxNoted is how many there is room for; each is a Slot.
	maxNoted     = 512
	notesStart   = slotLength // whatever the head takes of that
	notesArea    = notesStart + maxNoted*slotLength
	slotExponent = 8 // of slotLength
)

// Where the program keeps what must survive a call: r10 is the end of its stack.
const (
	keptWho       = int16(-8)
	keptSlot      = int16(-16)
	keptDirectory = int16(-24)
)

// clockProgram is a Clock's program: it starts or stops the timer. At callback begins what the timer calls, on the
// processor that it was started on, between two instructions of the thread that has it: of that one it notes
// registers and stack, if a slot has it. The threads of other slots that belong to the processor sleep, or wait for
// it. Those that have not run since they were read are counted again, the others are noted. Those that have ended are
// wanted, and those whose stack is long, or would have to be fetched from somewhere; who waits for the ring wakes up.
func clockProgram(l *layout, slots, noted, timer, ring int, area uint64) ([]uint64, []functionInfo) {
	c := newCode(area)
	c.ifProbe(l, noted)
	c.setTimer(noted, timer)
	callback := len(c.words)
	c.label("tick")
	c.nextTick(noted, timer)
	c.emit(opCall, 0, 0, 0, helperWho)
	c.emit(opStore8, r10, r0, keptWho, 0)
	c.address(r1, slots, requestStart)
	c.emit(opConstant4, r1, 0, requestWake, 0)
	c.eachSlot(slots)
	c.wake(slots, ring)
	slot := c.slotFunction(slots, func() {
		c.emit(opLoad4, r1, r6, slotPID, 0)
		c.jump(opIfZero, r1, 0, 0, "next")
		c.emit(opLoad4, r2, r10, keptWho, 0) // the lower half is the thread's
		c.jump(opIfEqual, r1, r2, 0, "running")
		c.findThread(l, "wanted")
		c.load(r1, l.processor)
		c.emit(opLoad4, r2, r9, requestProcessor, 0)
		c.jump(opIfNotEqual, r1, r2, 0, "done")
		c.ifChanged(l, "changed")
		c.countAgain(noted)
		c.label("done")
		c.releaseThread(l)
		c.jump(opGo, 0, 0, 0, "next")
		c.label("changed")
		c.writeSleeper(l, noted)
		c.releaseThread(l)
		c.label("wanted")
		c.emit(opConstant4, r6, 0, slotKnown, 0)
		c.emit(opConstant4, r6, 0, slotWanted, 1)
		c.emit(opConstant4, r9, 0, requestWake, 1)
		c.jump(opGo, 0, 0, 0, "next")
		c.label("running")
		c.write(l, noted)
	})
	walk := c.walkFunctions(noted, area)
	return c.finish(), append([]functionInfo{{0, typeFunction}, {uint32(callback), typeFunction}, slot}, walk...)
}

// ifProbe copies some of the caller's memory, if it asks for that, instead of what else the program does.
func (c *code) ifProbe(l *layout, noted int) {
	c.address(r6, noted, 0)
	c.emit(opLoad8, r1, r6, notesProbe, 0)
	c.jump(opIfZero, r1, 0, 0, "no probe")
	c.emit(opCall, 0, 0, 0, helperCurrent)
	c.emit(opMove, r7, r0, 0, 0)
	c.emit(opStore8, r6, r7, notesTask, 0)
	c.loadDirectory(l, "probed")
	c.emit(opLoad8, r2, r6, notesProbe, 0)
	c.emit(opSet, r3, 0, 0, probeLength)
	c.emit(opSet, r4, 0, 0, 0)
	c.call("copy")
	c.label("probed")
	c.emit(opExit, 0, 0, 0, 0)
	c.label("no probe")
}

// setTimer starts or stops the timer. The result is 0, or a negative error number.
func (c *code) setTimer(noted, timer int) {
	const (
		monotonic = 1
		busy      = -16 // it is initialized already
	)
	c.address(r1, noted, 0)
	c.emit(opLoad8, r1, r1, notesPeriod, 0)
	c.jump(opIfZero, r1, 0, 0, "stop")
	c.address(r1, timer, 0)
	c.table(r2, timer)
	c.emit(opSet, r3, 0, 0, monotonic)
	c.emit(opCall, 0, 0, 0, helperTimerInit)
	c.jump(opIfZero, r0, 0, 0, "initialized")
	c.jump(opIfNot, r0, 0, busy, "set")
	c.label("initialized")
	c.address(r1, timer, 0)
	c.function(r2, "tick")
	c.emit(opCall, 0, 0, 0, helperTimerCallback)
	c.jump(opIfNot, r0, 0, 0, "set")
	c.address(r1, noted, 0)
	c.emit(opLoad8, r2, r1, notesFirst, 0)
	c.startTimer(timer)
	c.jump(opGo, 0, 0, 0, "set")
	c.label("stop")
	c.address(r1, timer, 0)
	c.emit(opCall, 0, 0, 0, helperTimerCancel) // 1: it went
	c.jump(opIfNot, r0, 0, 1, "set")
	c.emit(opSet, r0, 0, 0, 0)
	c.label("set")
	c.emit(opExit, 0, 0, 0, 0)
}

// startTimer has the timer go off on this processor, after as many ns as r2 says.
func (c *code) startTimer(timer int) {
	const pinned = 2 // BPF_F_TIMER_CPU_PIN
	c.address(r1, timer, 0)
	c.emit(opSet, r3, 0, 0, pinned)
	c.emit(opCall, 0, 0, 0, helperTimerStart)
}

// nextPeriod loads a period, give or take a half by chance, into r2.
func (c *code) nextPeriod(noted int) {
	const randomBits = 22                 // so many times longestPeriod is less than 1<<64
	c.emit(opCall, 0, 0, 0, helperRandom) // 32 bits
	c.emit(opShiftRight, r0, 0, 0, 32-randomBits)
	c.address(r1, noted, 0)
	c.emit(opLoad8, r2, r1, notesPeriod, 0)
	c.emit(opMultiply, r0, r2, 0, 0)
	c.emit(opShiftRight, r0, 0, 0, randomBits)
	c.emit(opShiftRight, r2, 0, 0, 1)
	c.emit(opAdd, r2, r0, 0, 0)
}

// nextTick is what a tick begins with: the timer is set again, so that no period is longer for what is done in one;
// unless it is to stand still by now, even if whoever was to say so cannot, since it is stopped itself.
func (c *code) nextTick(noted, timer int) {
	c.address(r1, noted, 0)
	c.emit(opLoad8, r1, r1, notesPeriod, 0)
	c.jump(opIfZero, r1, 0, 0, "over")
	c.emit(opCall, 0, 0, 0, helperNow)
	c.address(r1, noted, 0)
	c.emit(opLoad8, r1, r1, notesUntil, 0)
	c.jump(opIfGreater, r1, r0, 0, "going")
	c.label("over")
	c.emit(opSet, r0, 0, 0, 0)
	c.emit(opExit, 0, 0, 0, 0)
	c.label("going")
	c.nextPeriod(noted)
	c.startTimer(timer)
}

// ifChanged goes elsewhere if the slot's thread is not known, is another one, has run since it was read, or was woken
// up.
func (c *code) ifChanged(l *layout, elsewhere string) {
	c.emit(opLoad4, r1, r6, slotKnown, 0)
	c.jump(opIfZero, r1, 0, 0, elsewhere)
	c.countSwitches(l)
	c.emit(opLoad8, r2, r6, slotSwitches, 0)
	c.jump(opIfNotEqual, r1, r2, 0, elsewhere)
	c.load(r1, l.state)
	c.emit(opLoad4, r2, r6, slotState, 0)
	c.jump(opIfNotEqual, r1, r2, 0, elsewhere)
	c.load(r1, l.started)
	c.emit(opLoad8, r2, r6, slotStarted, 0)
	c.jump(opIfNotEqual, r1, r2, 0, elsewhere)
}

// write notes the thread that was interrupted. r8 is the note meanwhile.
func (c *code) write(l *layout, noted int) {
	c.emit(opStore8, r10, r8, keptSlot, 0)
	c.emit(opCall, 0, 0, 0, helperCurrent)
	c.emit(opMove, r7, r0, 0, 0)
	c.nextNote(noted, "full")
	c.writeIdentity(l, r8)
	c.emit(opConstant4, r8, 0, slotState, 0) // even of one that is about to sleep
	c.saveRegisters(r8, "returning")
	c.measure(r8)
	c.address(r1, noted, notesArea)
	c.emit(opLoad8, r5, r8, slotAt, 0)
	c.jump(opIfFrom, r5, 0, c.most, "full") // as above, but the verifier does not know that
	c.emit(opAdd, r1, r5, 0, 0)
	c.emit(opCall, 0, 0, 0, helperReadUser)
	c.jump(opIfZero, r0, 0, 0, "copied")
	c.emit(opLoad8, r8, r10, keptSlot, 0)
	c.jump(opGo, 0, 0, 0, "wanted")

	c.label("copied")
	c.countNote(noted)
	c.emit(opLoad8, r8, r10, keptSlot, 0)
	c.jump(opIfFrom, r2, 0, c.most, "wake")
	c.emit(opLoad4, r2, r1, notesNoted, 0)
	c.jump(opIfFrom, r2, 0, maxNoted, "wake")
	c.jump(opGo, 0, 0, 0, "next")

	c.label("returning")
	c.miss(noted)
	c.jump(opGo, 0, 0, 0, "next")

	c.label("full")
	c.miss(noted)
	c.label("wake")
	c.emit(opConstant4, r9, 0, requestWake, 1) // to make room
}

// nextNote begins a note of the slot's thread, in r8, and goes elsewhere if there is no room for it.
func (c *code) nextNote(noted int, elsewhere string) {
	c.address(r1, noted, 0)
	c.emit(opLoad4, r2, r1, notesNoted, 0)
	c.jump(opIfFrom, r2, 0, maxNoted, elsewhere)
	c.emit(opLoad8, r5, r1, notesUsed, 0)
	c.jump(opIfFrom, r5, 0, c.most, elsewhere)
	c.emit(opShift, r2, 0, 0, slotExponent)
	c.address(r8, noted, notesStart)
	c.emit(opAdd, r8, r2, 0, 0)
	c.emit(opStore8, r8, r5, slotAt, 0)
	c.emit(opLoad8, r1, r10, keptSlot, 0)
	c.emit(opStore4, r8, r1, slotOther, 0)
	c.emit(opLoad8, r1, r6, slotEnd, 0)
	c.emit(opStore8, r8, r1, slotEnd, 0)
	c.emit(opConstant4, r8, 0, slotOutcome, int32(Read))
	c.emit(opConstant4, r8, 0, slotAgain, 0)
}

// countNote has the note in r8 count. r1 is the head of the table then, and r2 how much of the area is taken.
func (c *code) countNote(noted int) {
	c.address(r1, noted, 0)
	c.emit(opLoad4, r2, r1, notesNoted, 0)
	c.emit(opAddValue, r2, 0, 0, 1)
	c.emit(opStore4, r1, r2, notesNoted, 0)
	c.emit(opLoad8, r2, r1, notesUsed, 0)
	c.emit(opLoad8, r3, r8, slotLengthOf, 0)
	c.emit(opAdd, r2, r3, 0, 0)
	c.emit(opStore8, r1, r2, notesUsed, 0)
}

// miss counts that the thread that was interrupted is not noted. r8 is what it was before.
func (c *code) miss(noted int) {
	c.address(r1, noted, 0)
	c.emit(opLoad4, r2, r1, notesMissed, 0)
	c.emit(opAddValue, r2, 0, 0, 1)
	c.emit(opStore4, r1, r2, notesMissed, 0)
	c.emit(opLoad8, r8, r10, keptSlot, 0)
}

// wake ends a tick: it wakes up who waits for the ring, if there is a reason.
func (c *code) wake(slots, ring int) {
	const force = 2 // BPF_RB_FORCE_WAKEUP
	c.address(r1, slots, requestStart)
	c.emit(opLoad4, r1, r1, requestWake, 0)
	c.jump(opIfZero, r1, 0, 0, "quiet")
	c.table(r1, ring)
	c.emit(opMove, r2, r10, 0, 0)
	c.emit(opAddValue, r2, 0, 0, int32(keptWho)) // whatever it says
	c.emit(opSet, r3, 0, 0, word)
	c.emit(opSet, r4, 0, 0, force)
	c.emit(opCall, 0, 0, 0, helperRingOutput)
	c.label("quiet")
	c.emit(opSet, r0, 0, 0, 0)
	c.emit(opExit, 0, 0, 0, 0)
}
