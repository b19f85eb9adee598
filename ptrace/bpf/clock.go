package bpf

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Clock looks at a reader's threads at moments that it chooses by chance, from a timer of one processor's: it notes the
// one that has the processor and those that belong there, counts again those that have not run since, and says which of
// them have to be read by a call. For that its descriptor becomes readable.
type Clock struct {
	timer, table, ring, types, program int // descriptors

	area               uint64 // bytes for stacks
	memory             []byte // of the table
	notes              *notes
	pages              [2][]byte // of the ring
	consumed, produced *uint64   // how far it has been read and written, in bytes
	attributes         runAttributes
}

// longestPeriod is what a period can be multiplied with a number of 22 bits.
const longestPeriod = time.Hour

// Clock makes one for a reader. It stands still. The error is ErrUnsupported, or says which right is missing
// (fs.ErrPermission).
func (k *Kernel) Clock(r *Reader) (*Clock, error) {
	c := &Clock{timer: -1, table: -1, ring: -1, types: -1, program: -1, area: r.area}
	if err := c.load(&k.layout, r.table); err != nil {
		c.Close()
		return nil, err
	}
	if !k.probed {
		k.direct, k.probed = c.findDirect(), true
	}
	c.notes.direct = k.direct
	return c, nil
}

func (c *Clock) load(l *layout, slots int) error {
	var err error
	if c.types, err = loadTypes(); err != nil {
		return err
	}
	if c.timer, err = newMap(mapAttributes{
		kind: mapArray, key: 4, value: timerLength, entries: 1, types: uint32(c.types), keyType: typeNumber,
		valueType: typeValue,
	}); err != nil {
		return err
	}
	if c.table, c.memory, err = newTable(notesArea + int(c.area)); err != nil {
		return err
	}
	c.notes = (*notes)(unsafe.Pointer(&c.memory[0]))
	if err := c.makeRing(); err != nil {
		return err
	}
	words, functions := clockProgram(l, slots, c.table, c.timer, c.ring, c.area)
	if c.program, err = loadProgram(words, c.types, functions); err != nil {
		return err
	}
	c.attributes = runAttributes{program: uint32(c.program)}
	return nil
}

// makeRing makes what wakes up whoever waits for the descriptor: what is written into it says nothing.
func (c *Clock) makeRing() error {
	const mapRing = 27
	size := unix.Getpagesize()
	var err error
	if c.ring, err = newMap(mapAttributes{kind: mapRing, entries: uint32(size)}); err != nil {
		return err
	}
	for i, protection := range []int{unix.PROT_READ | unix.PROT_WRITE, unix.PROT_READ} {
		if c.pages[i], err = unix.Mmap(c.ring, int64(i*size), size, protection, unix.MAP_SHARED); err != nil {
			return fmt.Errorf("map a ring of the kernel's: %w", err)
		}
	}
	c.consumed = (*uint64)(unsafe.Pointer(&c.pages[0][0]))
	c.produced = (*uint64)(unsafe.Pointer(&c.pages[1][0]))
	return nil
}

// Start lets it go, on the processor that the caller runs on and must be bound to, once in a period, give or take a
// half by chance. The first time comes as if it had been going for long: one that is stopped and started again, however
// often, goes off as often as one that is not. It goes until Stop, or for so long at the most: nobody is interrupted
// for a program that is stopped itself.
func (c *Clock) Start(period, most time.Duration) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("clock: %w", err)
	}
	c.notes.period = uint64(max(1, min(period, longestPeriod)))
	which, where := rand.Float64(), rand.Float64() //nolint:gosec // nobody gains by guessing them
	c.notes.first = uint64(max(1, untilNext(float64(c.notes.period), which, where)))
	c.notes.until = uint64(now.Nano() + int64(most))
	return c.run("start a timer")
}

// untilNext is how long it is to the next of moments that are a period apart, give or take a half, from a moment chosen
// by chance, by two numbers of that: the longer one lasts, the more often it is met, somewhere in it.
func untilNext(period, which, where float64) float64 { return period * math.Sqrt(0.25+2*which) * where }

// Stop has it stand still: what it has noted may be looked at then.
func (c *Clock) Stop() error {
	c.notes.period = 0
	return c.run("stop a timer")
}

func (c *Clock) run(what string) error {
	result, errno := c.call()
	if errno == 0 {
		errno = unix.Errno(-result)
	}
	if errno != 0 {
		return fmt.Errorf("%s of the kernel's: %w", what, errno)
	}
	return nil
}

// call calls the program.
func (c *Clock) call() (result int32, errno unix.Errno) {
	c.attributes.result = 0
	_, errno = bpf(commandRun, unsafe.Pointer(&c.attributes), unsafe.Sizeof(c.attributes))
	return int32(c.attributes.result), errno
}

// Descriptor is readable while the reader has somebody to read, until Seen.
func (c *Clock) Descriptor() int { return c.ring }

// Seen says that who is to be read until now will be.
//
//go:nosplit
//go:norace
func (c *Clock) Seen() { *c.consumed = *c.produced }

// Room reports whether there is room for another note.
//
//go:nosplit
//go:norace
func (c *Clock) Room() bool { return c.notes.noted < maxNoted && c.notes.used < c.area-MaxStack }

// Noted returns the number of notes, and how often there was none: for want of room, or because the thread was
// returning from a signal, or began to run.
func (c *Clock) Noted() (noted, missed int) { return int(c.notes.noted), int(c.notes.missed) }

// Note is one of them; its Outcome is Read, and Other says which slot's thread it is.
func (c *Clock) Note(i int) *Slot {
	return (*Slot)(unsafe.Pointer(&c.memory[notesStart+i*slotLength]))
}

// Stacks is all that was read of stacks: that of a note is at its At.
func (c *Clock) Stacks() []byte { return c.memory[notesArea:][:c.notes.used:c.notes.used] }

// Empty forgets all notes.
func (c *Clock) Empty() { *c.notes = notes{direct: c.notes.direct} }

// Close gives everything back; without its descriptors the kernel ends the timer.
func (c *Clock) Close() {
	for _, memory := range [][]byte{c.pages[0], c.pages[1], c.memory} {
		if memory != nil {
			_ = unix.Munmap(memory)
		}
	}
	for _, fd := range []int{c.program, c.types, c.ring, c.table, c.timer} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	*c = Clock{timer: -1, table: -1, ring: -1, types: -1, program: -1}
}
