package capture

import (
	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/unwind/cfi"
)

// Bounds of the search for the call frame information of generated code.
const (
	maxGenerated  = 4 << 20 // bytes of one mapping that are searched
	nearGenerated = 8       // mappings on either side of the code that are searched
	maxSearches   = 32      // of one capture
	maxCIE        = 64      // bytes of a CIE; those of compilers have some 20
)

// generated is the call frame information of code that the process has made at
// run time, as far as one capture has looked for it.
type generated struct {
	tables   []*cfi.Table
	searches int
}

// generatedTable returns the call frame information that covers an address in a
// mapping without a file, nil if there is none. LLVM, with which PostgreSQL
// compiles queries, puts an .eh_frame section into read-only memory near the
// code. It is read from the live process, after the stop: that it is of this
// code shows by an FDE that covers the address.
func (sp *space) generatedTable(code *procfs.Mapping, addr uint64) *cfi.Table {
	if code.Inode != 0 || code.Path != "" {
		return nil
	}
	g := &sp.generated
	for _, t := range g.tables {
		if covers(t, code, addr) {
			return t
		}
	}
	if g.searches++; g.searches > maxSearches {
		return nil
	}
	at := sp.mapping(code.Start)
	for i := max(at-nearGenerated, 0); i <= min(at+nearGenerated, len(sp.maps)-1); i++ {
		m := &sp.maps[i]
		if m.Inode != 0 || m.Path != "" || m.Perms != procfs.Read || m.End-m.Start > maxGenerated {
			continue
		}
		if t := sp.searchFrames(m, code, addr); t != nil {
			g.tables = append(g.tables, t)
			return t
		}
	}
	return nil
}

// searchFrames looks for the start of an .eh_frame section with an FDE for the
// address.
func (sp *space) searchFrames(m, code *procfs.Mapping, addr uint64) *cfi.Table {
	data := make([]byte, m.End-m.Start)
	if n, err := sp.read(m.Start, data); err != nil {
		data = data[:n]
	}
	a := sp.spaces.images.arch
	for off := 0; off+maxCIE <= len(data); off += 8 {
		p := data[off:]
		// Length, the id of a CIE, version 1, augmentation "z...".
		if size := a.Order.Uint32(p); size < 8 || size > maxCIE || a.Order.Uint32(p[4:]) != 0 || p[8] != 1 || p[9] != 'z' {
			continue
		}
		t, err := cfi.New(cfi.Sections{
			EHFrame: cfi.Section{Addr: m.Start + uint64(off), Data: p}, Order: a.Order, AddrSize: a.AddrSize, Arch: a,
		})
		if err == nil && covers(t, code, addr) {
			return t
		}
	}
	return nil
}

// read reads the process's memory.
func (sp *space) read(addr uint64, p []byte) (int, error) {
	if sp.memory != nil {
		return sp.memory(addr, p)
	}
	return processReader(sp.pid)(addr, p)
}

// covers tells whether a table has an FDE for the address that lies in the code.
func covers(t *cfi.Table, code *procfs.Mapping, addr uint64) bool {
	f, err := t.Find(addr)
	return err == nil && f.Start >= code.Start && f.End <= code.End
}
