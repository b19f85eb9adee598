package bpf

// Memory of a process that is not the one that was interrupted can only be had by the way that the processor goes,
// since whoever is called by a timer may not wait: by the process's page tables, to the place where the kernel has
// mapped all memory. Nothing keeps tables and pages where they are meanwhile. But an address that leads to the same
// place before and after a copy, each time from the first table on, led there all the time, or the kernel would have
// had to take the page away and give it back within microseconds. Of tables that are being changed, of a page that is
// in no memory, of memory that is not the process's own, and of such that the kernel has not mapped the copy fails:
// what the kernel cannot read there it does not read, and says so.

// Bits of an entry of a page table (Intel's Software Developer's Manual, volume 3, 5.5; asm/pgtable_types.h).
const (
	entryReachable = 1<<0 | 1<<2 // it is there, and for a process
	entryLarge     = 1 << 7      // it is of a page of 2 MB or 1 GB
	entryAddress   = 52          // the bits from there on say something else
)

// Shifts.
const (
	pageShift  = 12
	tableShift = 9  // of the number of a table's entries
	fourLevels = 39 // what is in an entry of the first table of four, and of five
	fiveLevels = 48

	// highHalf is what begins each of the kernel's addresses, shifted by that many, if there are four levels.
	highHalf, highHalfShift = 1<<17 - 1, 47
)

// maxPages is how many pages of a stack are copied in an interrupt: what has more is rare.
const maxPages = 16

// walkFunctions are three functions: what a Clock's program calls to copy memory of another process. They are called
// with numbers only, and verified by themselves.
func (c *code) walkFunctions(noted int, area uint64) []functionInfo {
	infos := []functionInfo{{uint32(len(c.words)), typeCopy}}
	c.label("copy")
	c.copyPages()
	infos = append(infos, functionInfo{uint32(len(c.words)), typePage})
	c.label("page")
	c.copyPage(noted, area)
	infos = append(infos, functionInfo{uint32(len(c.words)), typeWhere})
	c.label("where")
	c.findPlace(noted)
	return infos
}

// copyPages is a function of page tables, an address, a length, and a place in the notes' area. It is 0, or 1 if not
// all could be copied.
func (c *code) copyPages() {
	const keptPages = int16(-8)
	c.keepArguments()
	c.emit(opSet, r1, 0, 0, 0)
	c.emit(opStore8, r10, r1, keptPages, 0)
	c.label("next page")
	c.emit(opSet, r0, 0, 0, 0)
	c.jump(opIfZero, r8, 0, 0, "all")
	c.emit(opLoad8, r1, r10, keptPages, 0)
	c.jump(opIfFrom, r1, 0, maxPages, "not all")
	c.emit(opAddValue, r1, 0, 0, 1)
	c.emit(opStore8, r10, r1, keptPages, 0)
	c.emit(opMove, r1, r6, 0, 0)
	c.emit(opMove, r2, r7, 0, 0)
	c.emit(opMove, r3, r8, 0, 0)
	c.emit(opMove, r4, r9, 0, 0)
	c.call("page")
	c.jump(opIfZero, r0, 0, 0, "not all")
	c.emit(opAdd, r7, r0, 0, 0)
	c.emit(opSubtract, r8, r0, 0, 0)
	c.emit(opAdd, r9, r0, 0, 0)
	c.jump(opGo, 0, 0, 0, "next page")
	c.label("not all")
	c.emit(opSet, r0, 0, 0, 1)
	c.label("all")
	c.emit(opExit, 0, 0, 0, 0)
}

// copyPage is a function of the same: how much was copied, of one page, or 0.
func (c *code) copyPage(noted int, area uint64) {
	const keptPlace, keptLength = int16(-8), int16(-16)
	const page = 1 << pageShift
	c.keepArguments()
	c.jump(opIfFrom, r9, 0, int32(area-page), "no page")
	c.findPage()
	c.jump(opIfZero, r0, 0, 0, "no page")
	c.emit(opStore8, r10, r0, keptPlace, 0)
	c.emit(opMove, r1, r7, 0, 0)
	c.emit(opAndValue, r1, 0, 0, page-1)
	c.emit(opSet, r2, 0, 0, page)
	c.emit(opSubtract, r2, r1, 0, 0)
	c.jump(opIfMost, r2, r8, 0, "to its end")
	c.emit(opMove, r2, r8, 0, 0)
	c.label("to its end")
	c.emit(opStore8, r10, r2, keptLength, 0)
	c.address(r1, noted, notesArea)
	c.emit(opAdd, r1, r9, 0, 0)
	c.emit(opMove, r3, r0, 0, 0)
	c.emit(opCall, 0, 0, 0, helperReadKernel)
	c.jump(opIfNot, r0, 0, 0, "no page")
	c.findPage()
	c.emit(opLoad8, r1, r10, keptPlace, 0)
	c.jump(opIfNotEqual, r0, r1, 0, "no page")
	c.emit(opLoad8, r0, r10, keptLength, 0)
	c.emit(opExit, 0, 0, 0, 0)
	c.label("no page")
	c.emit(opSet, r0, 0, 0, 0)
	c.emit(opExit, 0, 0, 0, 0)
}

// keepArguments has four arguments where they survive calls.
func (c *code) keepArguments() {
	c.emit(opMove, r6, r1, 0, 0)
	c.emit(opMove, r7, r2, 0, 0)
	c.emit(opMove, r8, r3, 0, 0)
	c.emit(opMove, r9, r4, 0, 0)
}

func (c *code) findPage() {
	c.emit(opMove, r1, r6, 0, 0)
	c.emit(opMove, r2, r7, 0, 0)
	c.call("where")
}

// findPlace is a function of page tables and an address: where the kernel has mapped what is there, or 0.
func (c *code) findPlace(noted int) {
	c.emit(opMove, r6, r1, 0, 0)
	c.emit(opMove, r7, r2, 0, 0)
	c.address(r1, noted, 0)
	c.emit(opLoad8, r8, r1, notesDirect, 0)
	c.jump(opIfZero, r8, 0, 0, "nowhere")
	c.emit(opMove, r1, r8, 0, 0)
	c.emit(opShiftRight, r1, 0, 0, highHalfShift)
	c.emit(opMove, r2, r7, 0, 0)
	c.jump(opIfZero, r1, 0, highHalf, "four")
	c.emit(opShiftRight, r2, 0, 0, fiveLevels+tableShift-1) // half of the addresses are the kernel's
	c.jump(opIfNot, r2, 0, 0, "nowhere")
	c.nextTable(fiveLevels)
	c.jump(opGo, 0, 0, 0, "next table")
	c.label("four")
	c.emit(opShiftRight, r2, 0, 0, fourLevels+tableShift-1)
	c.jump(opIfNot, r2, 0, 0, "nowhere")
	c.label("next table")
	c.nextTable(fourLevels)
	for _, shift := range []int32{fourLevels - tableShift, fourLevels - 2*tableShift} {
		c.loadEntry(shift)
		c.emit(opMove, r2, r1, 0, 0)
		c.emit(opAndValue, r2, 0, 0, entryLarge)
		small := c.unique("small")
		c.jump(opIfZero, r2, 0, 0, small)
		c.place(shift)
		c.label(small)
		c.toTable()
	}
	c.loadEntry(pageShift)
	c.place(pageShift)
	c.label("nowhere")
	c.emit(opSet, r0, 0, 0, 0)
	c.emit(opExit, 0, 0, 0, 0)
}

// loadEntry loads the entry of an address into r1, from the table at r6.
func (c *code) loadEntry(shift int32) {
	const entry = int16(-8)
	c.emit(opMove, r3, r7, 0, 0)
	c.emit(opShiftRight, r3, 0, 0, shift)
	c.emit(opAndValue, r3, 0, 0, 1<<tableShift-1)
	c.emit(opShift, r3, 0, 0, 3)
	c.emit(opAdd, r3, r6, 0, 0)
	c.emit(opMove, r1, r10, 0, 0)
	c.emit(opAddValue, r1, 0, 0, int32(entry))
	c.emit(opSet, r2, 0, 0, word)
	c.emit(opCall, 0, 0, 0, helperReadKernel)
	c.jump(opIfNot, r0, 0, 0, "nowhere")
	c.emit(opLoad8, r1, r10, entry, 0)
	c.emit(opMove, r2, r1, 0, 0)
	c.emit(opAndValue, r2, 0, 0, entryReachable)
	c.jump(opIfNot, r2, 0, entryReachable, "nowhere")
}

// toTable goes to the table of the entry in r1; nextTable does so from the table that has it.
func (c *code) toTable() {
	c.clearBelow(pageShift)
	c.emit(opMove, r6, r8, 0, 0)
	c.emit(opAdd, r6, r1, 0, 0)
}

func (c *code) nextTable(shift int32) {
	c.loadEntry(shift)
	c.toTable()
}

// clearBelow leaves of the entry in r1 the address of a page.
func (c *code) clearBelow(shift int32) {
	c.emit(opShift, r1, 0, 0, 64-entryAddress)
	c.emit(opShiftRight, r1, 0, 0, 64-entryAddress+shift)
	c.emit(opShift, r1, 0, 0, shift)
}

// place ends the function with the place of an address in the page of the entry in r1.
func (c *code) place(shift int32) {
	c.clearBelow(shift)
	c.emit(opMove, r0, r7, 0, 0)
	c.emit(opAndValue, r0, 0, 0, 1<<shift-1)
	c.emit(opAdd, r0, r1, 0, 0)
	c.emit(opAdd, r0, r8, 0, 0)
	c.emit(opExit, 0, 0, 0, 0)
}
