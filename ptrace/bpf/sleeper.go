package bpf

// writeSleeper notes a thread that sleeps or waits for a processor, in r7, as write does the one that was interrupted:
// it goes to "wanted", without the thread, if its stack cannot be copied here, and to "done" with it otherwise. It has
// been at one place for all that it takes, or it is not noted: as for a Reader, see secondLook.
func (c *code) writeSleeper(l *layout, noted int) {
	c.emit(opStore8, r10, r8, keptSlot, 0)
	c.address(r1, noted, 0)
	c.emit(opLoad8, r2, r1, notesDirect, 0)
	c.jump(opIfZero, r2, 0, 0, "elsewhere")
	c.nextNote(noted, "elsewhere") // who reads it then makes room
	c.writeIdentity(l, r8)
	c.load(r1, l.onProcessor)
	c.jump(opIfNot, r1, 0, 0, "moved")
	c.countSwitches(l)
	c.emit(opStore8, r8, r1, slotSwitches, 0)
	c.saveRegisters(r8, "moved")
	c.measure(r8)
	c.jump(opIfMore, r2, 0, (maxPages-1)<<pageShift, "elsewhere")
	c.loadDirectory(l, "elsewhere")
	c.emit(opLoad8, r2, r8, slotStart, 0)
	c.emit(opLoad8, r3, r8, slotLengthOf, 0)
	c.emit(opLoad8, r4, r8, slotAt, 0)
	c.call("copy")
	c.jump(opIfNot, r0, 0, 0, "elsewhere")
	c.load(r1, l.onProcessor)
	c.jump(opIfNot, r1, 0, 0, "moved")
	c.countSwitches(l)
	c.emit(opLoad8, r2, r8, slotSwitches, 0)
	c.jump(opIfNotEqual, r1, r2, 0, "moved")

	c.emit(opStore8, r6, r2, slotSwitches, 0)
	c.emit(opLoad8, r1, r8, slotStarted, 0)
	c.emit(opStore8, r6, r1, slotStarted, 0)
	c.emit(opLoad4, r1, r8, slotState, 0)
	c.emit(opStore4, r6, r1, slotState, 0)
	c.emit(opConstant4, r6, 0, slotKnown, knownNoted)
	c.address(r1, noted, 0)
	c.emit(opLoad4, r1, r1, notesNoted, 0)
	c.emit(opStore4, r6, r1, slotOther, 0)
	c.countNote(noted)
	c.emit(opLoad8, r8, r10, keptSlot, 0)
	c.jump(opGo, 0, 0, 0, "done")

	c.label("moved")
	c.miss(noted)
	c.jump(opGo, 0, 0, 0, "done")

	c.label("elsewhere")
	c.emit(opLoad8, r8, r10, keptSlot, 0)
}

// loadDirectory loads the address of the page tables of the thread in r7 into r1, as a number.
func (c *code) loadDirectory(l *layout, none string) {
	c.load(r3, l.space)
	c.emit(opAddValue, r3, 0, 0, int32(l.directory.at))
	c.emit(opMove, r1, r10, 0, 0)
	c.emit(opAddValue, r1, 0, 0, int32(keptDirectory))
	c.emit(opSet, r2, 0, 0, word)
	c.emit(opCall, 0, 0, 0, helperReadKernel) // fails for a thread of the kernel's, which has none
	c.jump(opIfNot, r0, 0, 0, none)
	c.emit(opLoad8, r1, r10, keptDirectory, 0)
}

// countAgain counts that a thread has not run since it was read, where it was.
func (c *code) countAgain(noted int) {
	c.emit(opLoad4, r1, r6, slotKnown, 0)
	c.jump(opIfZero, r1, 0, knownNoted, "noted")
	c.emit(opLoad4, r1, r6, slotAgain, 0)
	c.emit(opAddValue, r1, 0, 0, 1)
	c.emit(opStore4, r6, r1, slotAgain, 0)
	c.jump(opGo, 0, 0, 0, "done")
	c.label("noted")
	c.emit(opLoad4, r2, r6, slotOther, 0)
	c.jump(opIfFrom, r2, 0, maxNoted, "done") // it is less
	c.emit(opShift, r2, 0, 0, slotExponent)
	c.address(r3, noted, notesStart)
	c.emit(opAdd, r3, r2, 0, 0)
	c.emit(opLoad4, r1, r3, slotAgain, 0)
	c.emit(opAddValue, r1, 0, 0, 1)
	c.emit(opStore4, r3, r1, slotAgain, 0)
}
