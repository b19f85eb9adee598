package golang

import (
	"encoding/binary"
	"fmt"
)

// Segment is a part of the program's writable memory.
type Segment struct {
	Addr uint64
	Data []byte
}

// Program describes a Go program, for NewRuntime.
type Program struct {
	Order  binary.ByteOrder
	Layout Layout
	// Writable is the memory of the program's variables.
	Writable []Segment
	// List is the address of runtime.allgs if a symbol table has it, else 0.
	List uint64

	// Left is the number of reads of memory that searches may still make, for all programs of a process; nil: MaxReads.
	Left *int
}

// MaxReads bounds the reads of memory in the searches of a process. The list can be read twice: it, and the collector's copy, see find.
const MaxReads = 3 * maxGoroutines

// NewRuntime finds the list of goroutines in a program. The error is ErrNotFound if there is no such list, or if it is not found
// within Program.Left.
func NewRuntime(p *Program, read Read) (*Runtime, error) {
	r := &Runtime{order: p.Order, layout: p.Layout, list: p.List}
	left := p.Left
	if left == nil {
		most := MaxReads
		left = &most
	}
	bounded := func(addr uint64, b []byte) bool {
		*left--
		return *left >= 0 && read(addr, b)
	}
	if r.list == 0 {
		r.list = p.find(bounded)
	}
	if r.list == 0 {
		return nil, fmt.Errorf("%w: nothing in the program's variables looks like it", ErrNotFound)
	}
	if _, err := r.All(read); err != nil {
		return nil, err
	}
	r.reasons = p.reasons(bounded)
	return r, nil
}

// find searches for the variable runtime.allgs in a program without symbols. It is a slice of pointers to goroutines. A
// goroutine is recognised by a field of its structure that contains the structure's own address. A second variable,
// runtime.allgptr, contains the slice's pointer, too. The garbage collector may have a copy of the slice, which is not
// longer than the slice and has no spare capacity. So find takes the longest slice with the largest capacity.
func (p *Program) find(read Read) uint64 {
	const most = 256 // slices to examine; programs have a few that begin like the list
	examined := 0
	var best, length, room uint64
	for _, s := range p.Writable {
		for off := 0; off+ListSize <= len(s.Data); off += 8 {
			head := s.Data[off:][:ListSize]
			addr, n, c := p.Order.Uint64(head), p.Order.Uint64(head[8:]), p.Order.Uint64(head[16:])
			if addr == 0 || addr%8 != 0 || n == 0 || n > c || c > maxGoroutines {
				continue
			}
			if n < length || n == length && c <= room || !p.begins(addr, read) {
				continue
			}
			if examined++; examined > most {
				return best
			}
			if !p.goroutines(head, read) || p.count(addr) < 2 {
				continue
			}
			best, length, room = s.Addr+uint64(off), n, c
		}
	}
	return best
}

// count returns how many words of the variables contain the value. It stops counting at 2.
func (p *Program) count(value uint64) (n int) {
	for _, s := range p.Writable {
		for off := 0; off+8 <= len(s.Data) && n < 2; off += 8 {
			if p.Order.Uint64(s.Data[off:]) == value {
				n++
			}
		}
	}
	return n
}

// begins reports whether the first element of an array is a goroutine.
func (p *Program) begins(array uint64, read Read) bool {
	var first [8]byte
	if !read(array, first[:]) {
		return false
	}
	is, _ := p.isGoroutine(p.Order.Uint64(first[:]), read)
	return is
}

// goroutines reports whether the elements of a slice are goroutines, of which at least one exists. head has the slice's
// pointer, length and capacity.
func (p *Program) goroutines(head []byte, read Read) bool {
	all, err := elements(p.Order, head, read)
	if err != nil {
		return false
	}
	seen, exists := make(map[uint64]bool, len(all)), false
	for _, addr := range all {
		ok, one := p.isGoroutine(addr, read)
		if seen[addr] || !ok {
			return false
		}
		seen[addr], exists = true, exists || one
	}
	return exists
}

// isGoroutine reports whether a goroutine's structure is at an address, and whether the goroutine exists.
func (p *Program) isGoroutine(addr uint64, read Read) (is, exists bool) {
	if addr == 0 || addr%8 != 0 {
		return false, false
	}
	b := make([]byte, p.Layout.size())
	if !read(addr, b) {
		return false, false
	}
	self, status := p.Order.Uint64(b[offSelf:]), Status(p.Order.Uint32(b[p.Layout.Status:])&^scanned)
	exists = status.Exists()
	return status <= DeadExtra && (self == addr || self == 0 && !exists), exists
}

// Go has a table of the reasons why goroutines wait, runtime.waitReasonStrings. In all versions it begins with an empty
// string and these two strings.
const (
	firstReason  = "GC assist marking"
	secondReason = "IO wait"
	maxReasons   = 128
	maxReason    = 64 // bytes
)

// reasons finds and reads the table of reasons; nil if it is not found.
func (p *Program) reasons(read Read) []string {
	for _, s := range p.Writable {
		for off := 8; off+40 <= len(s.Data); off += 8 {
			word := func(i int) uint64 { return p.Order.Uint64(s.Data[off+8*i:]) }
			// The length of the empty string, and the lengths of the next two strings.
			if word(0) != 0 || word(2) != uint64(len(firstReason)) || word(4) != uint64(len(secondReason)) {
				continue
			}
			if p.text(word(1), word(2), read) == firstReason && p.text(word(3), word(4), read) == secondReason {
				return p.readReasons(s.Data[off-8:], read)
			}
		}
	}
	return nil
}

// readReasons reads the table of reasons from its start. It stops at the first entry that is no short printable string.
func (p *Program) readReasons(data []byte, read Read) []string {
	reasons := []string{""}
	for i := 1; i < maxReasons && 16*i+16 <= len(data); i++ {
		text := p.text(p.Order.Uint64(data[16*i:]), p.Order.Uint64(data[16*i+8:]), read)
		if text == "" {
			break
		}
		reasons = append(reasons, text)
	}
	return reasons
}

// text reads a short string of printable characters. It returns "" if the string is invalid.
func (p *Program) text(addr, n uint64, read Read) string {
	if addr == 0 || n == 0 || n > maxReason {
		return ""
	}
	b := make([]byte, n)
	if !read(addr, b) {
		return ""
	}
	for _, c := range b {
		if c < ' ' || c > '~' {
			return ""
		}
	}
	return string(b)
}
