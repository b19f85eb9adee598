package bpf

import (
	"bytes"
	"crypto/rand"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	probeLength = 64
	// The kernel maps all memory in one piece, from an address on that chance chooses when it boots, among multiples of
	// this (arch/x86/mm/kaslr.c).
	directUnit = 1 << 30
	// The greatest address of memory is somewhat more than what there is of it.
	spareUnits = 64
)

// findDirect looks where the kernel has mapped all memory, as no interface says: some multiple of directUnit at or
// below any of its structures, so far below as there is memory. It is the one with which the way through this
// process's page tables leads to what this process has written there, which nobody can guess; with the others it
// leads to other memory, or nowhere. The result is 0 if there is none: if processes' memory is encrypted, this is a
// guest without page tables of its own, or the kernel lets nobody read its memory.
func (c *Clock) findDirect() uint64 {
	page, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return 0
	}
	defer func() { _ = unix.Munmap(page) }()
	_, _ = rand.Read(page[:probeLength]) // it has no error
	defer func() { *c.notes = notes{}; clear(c.memory[notesArea:][:probeLength]) }()
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	c.notes.probe = uint64(uintptr(unsafe.Pointer(&page[0])))
	if _, errno := c.call(); errno != 0 {
		return 0
	}
	first := c.notes.task &^ (directUnit - 1)
	units := 2*info.Totalram*uint64(info.Unit)/directUnit + spareUnits
	for i := range units {
		c.notes.direct = first - i*directUnit
		result, errno := c.call()
		if errno == 0 && result == 0 && bytes.Equal(c.memory[notesArea:][:probeLength], page[:probeLength]) {
			return c.notes.direct
		}
	}
	return 0
}
