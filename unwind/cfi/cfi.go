// Package cfi finds, parses and evaluates DWARF call frame information. For an address in an ELF image it gives the
// locations of the caller's registers. It reads .eh_frame, through the search table of .eh_frame_hdr if there is one,
// and .debug_frame (DWARF 5 §6.4; Linux Standard Base 5.0, "Exception Frames").
//
// The package does not depend on files, load addresses or processes. Addresses are the image's link-time addresses, and
// memory is an interface. The bytes of the sections may be damaged or hostile. Parsing and evaluating are bounded in
// time and space, and always return a value or an error.
package cfi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"pg_stat_backtrace/unwind/arch"
)

// Errors that callers branch on with errors.Is.
var (
	// ErrNoFDE means that no call frame information covers the address.
	ErrNoFDE = errors.New("cfi: no call frame information")
	// ErrBadCFI means that the call frame information is malformed, or contains something that DWARF does not allow in
	// call frame information.
	ErrBadCFI = errors.New("cfi: malformed call frame information")
	// ErrUndefinedRA means that the return address is undefined: the frame is the outermost frame. The error is not
	// wrapped, because every complete stack ends with it.
	ErrUndefinedRA = errors.New("cfi: return address is undefined")
	// ErrMemory means that a rule needs memory that the snapshot does not contain.
	ErrMemory = errors.New("cfi: memory not available")
	// ErrRegister means that a rule needs a register with an unknown value.
	ErrRegister = errors.New("cfi: register not known")
)

// Section has a section's contents and its link-time address. The Table keeps Data without a copy, so the contents must
// not change.
type Section struct {
	Addr uint64
	Data []byte
}

// Sections are the parts of call frame information in one image. Absent sections have no data.
type Sections struct {
	EHFrameHdr, EHFrame, DebugFrame Section

	// Order and AddrSize belong to the image; the zero values mean the values of Arch.
	Order    binary.ByteOrder
	AddrSize int

	// TextAddr and DataAddr are the base addresses of DW_EH_PE_textrel and DW_EH_PE_datarel. DataAddr is the address of
	// the global offset table. In .eh_frame_hdr, DW_EH_PE_datarel has another base: the address of the section.
	TextAddr, DataAddr uint64

	// Arch is the image's architecture; nil means the architecture of this program.
	Arch *arch.Arch

	// Deref reads a pointer of the image at a link-time address, for DW_EH_PE_indirect. If Deref is nil, only pointers
	// in .eh_frame and .debug_frame can be read.
	Deref func(addr uint64) (uint64, bool)
}

// sectionID identifies one of the two sections that contain FDEs.
type sectionID uint8

const (
	ehFrame sectionID = iota
	debugFrame
	sectionCount
)

// Table is the call frame information of one image. It is safe for concurrent use. Look-ups take no lock, except
// while the index is being built.
type Table struct {
	arch     *arch.Arch
	big      bool
	addrSize int
	addrMask uint64
	text     uint64
	data     uint64
	deref    func(uint64) (uint64, bool)

	sections [sectionCount]Section
	header   header
	// distrust is set once a pair of the header did not match the FDE that it points to. From then on, look-ups use the
	// index instead of the header.
	distrust atomic.Bool
	index    [sectionCount]index

	cies cieCache
	rows rowCache
}

// New makes a Table. It checks only the header in .eh_frame_hdr. Without a usable header, the first look-up builds an
// index of .eh_frame. The first look-up that .eh_frame cannot answer builds an index of .debug_frame. The error is
// ErrBadCFI if the architecture is unknown, or if the address size is not 4 or 8.
func New(s Sections) (*Table, error) {
	t := &Table{arch: s.Arch, addrSize: s.AddrSize, text: s.TextAddr, data: s.DataAddr, deref: s.Deref}
	if t.arch == nil {
		t.arch = arch.Host()
	}
	if t.arch == nil {
		return nil, fmt.Errorf("%w: architecture not given", ErrBadCFI)
	}
	if t.addrSize == 0 {
		t.addrSize = t.arch.AddrSize
	}
	if t.addrSize != 4 && t.addrSize != 8 {
		return nil, fmt.Errorf("%w: address size %d", ErrBadCFI, t.addrSize)
	}
	order := s.Order
	if order == nil {
		order = t.arch.Order
	}
	t.big = order.Uint16([]byte{1, 0}) != 1
	t.addrMask = ^uint64(0) >> (64 - 8*t.addrSize)
	t.sections = [sectionCount]Section{s.EHFrame, s.DebugFrame}
	t.header = t.parseHeader(s.EHFrameHdr)
	t.rows.size(max(t.header.count, uint64(len(s.EHFrame.Data)+len(s.DebugFrame.Data))/typicalFDE))
	return t, nil
}

// typicalFDE is the approximate size of an FDE in bytes, to estimate the number of FDEs.
const typicalFDE = 64

// Searchable reports whether .eh_frame_hdr has a search table that look-ups use. If not, the first look-up builds an
// index of .eh_frame.
func (t *Table) Searchable() bool { return t.header.count > 0 && !t.distrust.Load() }

// Empty reports whether the image has no call frame information.
func (t *Table) Empty() bool {
	return len(t.sections[ehFrame].Data) == 0 && len(t.sections[debugFrame].Data) == 0
}

// badAt makes an ErrBadCFI about the entry at an offset of a section.
func badAt(s sectionID, off uint64, what string) error {
	name := ".eh_frame"
	if s == debugFrame {
		name = ".debug_frame"
	}
	return fmt.Errorf("%w: %s+%#x: %s", ErrBadCFI, name, off, what)
}
