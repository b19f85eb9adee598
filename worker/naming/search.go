package naming

import (
	"encoding/binary"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/symbol"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// Bounds of the search for the call frame information of unregistered code.
const (
	maxSearched = 4 << 20 // bytes to search
	maxMappings = 64      // mappings to search: few mappings other than LLVM's are anonymous and read-only
	maxCIE      = 64      // bytes of a CIE; compilers make some 20
)

// searchFrames searches for the .eh_frame section that describes addr. The parameter code is the index of the mapping
// that contains addr, which has no file. PostgreSQL compiles queries with LLVM, which puts the section into read-only
// memory, as near to the code as possible. So the nearest mappings are searched first. A section is accepted if one of
// its entries covers the address, and the code of this entry lies in the same mapping as addr.
func (p *JITProcess) searchFrames(memory symbolize.MemoryReader, code int, addr uint64) (symbol.JITSpan, bool) {
	left, mappings := uint64(maxSearched), maxMappings
	for d := 1; d < len(p.Maps) && mappings > 0; d++ {
		for _, i := range [...]int{code - d, code + d} {
			if i < 0 || i >= len(p.Maps) || !readOnly(&p.Maps[i]) || p.Maps[i].End-p.Maps[i].Start > left {
				continue
			}
			m := &p.Maps[i]
			data := make([]byte, m.End-m.Start)
			left, mappings = left-uint64(len(data)), mappings-1
			n, _ := memory(m.Start, data)
			if at, ok := p.searchMapping(m.Start, data[:max(n, 0)], &p.Maps[code], addr); ok {
				return at, true
			}
		}
	}
	return symbol.JITSpan{}, false
}

// readOnly reports whether a mapping is anonymous memory with only read permission.
func readOnly(m *process.Mapping) bool {
	return m.Inode == 0 && m.Path == "" && m.Perms == process.Read
}

// searchMapping searches a mapping for a section with an entry for the address.
func (p *JITProcess) searchMapping(start uint64, data []byte, code *process.Mapping, addr uint64) (symbol.JITSpan, bool) {
	order := p.Arch.Order
	for off := 0; off+maxCIE <= len(data); off += 8 {
		rest := data[off:]
		if !startsCIE(order, rest) {
			continue
		}
		rest = rest[:sectionLength(order, rest)]
		if t := frameTable(p.Arch, start+uint64(off), rest); t != nil && covers(t, code, addr) {
			return symbol.JITSpan{Start: start + uint64(off), End: start + uint64(off+len(rest))}, true
		}
	}
	return symbol.JITSpan{}, false
}

// startsCIE reports whether at least maxCIE bytes begin like a CIE: length, the id of a CIE, version 1, augmentation
// "z...".
func startsCIE(order binary.ByteOrder, data []byte) bool {
	size := order.Uint32(data)
	return size >= 8 && size <= maxCIE && order.Uint32(data[4:]) == 0 && data[8] == 1 && data[9] == 'z'
}

// sectionLength returns the length of the valid entries at the beginning of data.
func sectionLength(order binary.ByteOrder, data []byte) int {
	const field, extended = 4, 0xfffffff0
	at := 0
	for at+field <= len(data) {
		n := order.Uint32(data[at:])
		if n == 0 || n >= extended || uint64(n) > uint64(len(data)-at-field) {
			break
		}
		at += field + int(n)
	}
	return at
}

// describes reports whether the section has an entry for the address, whose code lies in the mapping of the address.
func (p *JITProcess) describes(memory symbolize.MemoryReader, section symbol.JITSpan, addr uint64) bool {
	i := p.mapping(addr)
	t := framesAt(p.Arch, memory, section)
	return i >= 0 && t != nil && covers(t, &p.Maps[i], addr)
}

// covers reports whether a table has an entry for the address, and the code of this entry lies inside one mapping, the
// parameter code.
func covers(t *cfi.Table, code *process.Mapping, addr uint64) bool {
	f, err := t.Find(addr)
	return err == nil && f.Start >= code.Start && f.End <= code.End
}
