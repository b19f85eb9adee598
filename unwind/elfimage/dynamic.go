package elfimage

import "debug/elf"

// maxDynamic limits the entries read of a dynamic segment.
const maxDynamic = 4096

// findDynamic derives .dynsym and .dynstr from the dynamic segment, for an image without section headers. The dynamic
// segment does not have the number of symbols, so findDynamic gets it from the hash table.
func (m *Image) findDynamic(bias uint64) {
	s, ok := m.findProgram(elf.PT_DYNAMIC)
	if !ok {
		return
	}
	tags := m.dynamicTags(s)
	addr := func(tag elf.DynTag) uint64 { return m.unrelocate(tags[tag], bias) }
	count := m.hashCount(addr(elf.DT_HASH))
	if count == 0 {
		count = m.gnuHashCount(addr(elf.DT_GNU_HASH))
	}
	count = min(count, maxSymbols)
	entsize := uint64(m.layout.pick(24, 16))
	strs := addr(elf.DT_STRTAB)
	before := len(m.sections)
	m.synthesize(section{name: ".dynstr", typ: elf.SHT_STRTAB, addr: strs, size: tags[elf.DT_STRSZ]})
	if len(m.sections) == before || count == 0 {
		return
	}
	m.synthesize(section{
		name: ".dynsym", typ: elf.SHT_DYNSYM, addr: addr(elf.DT_SYMTAB), size: count * entsize, entsize: entsize,
		link: uint32(before),
	})
}

// dynamicTags reads the values of the tags that findDynamic and IsProgram need.
func (m *Image) dynamicTags(s Segment) map[elf.DynTag]uint64 {
	tags := make(map[elf.DynTag]uint64)
	w := uint64(m.layout.addrSize())
	p, err := m.at(s.Vaddr, min(s.Memsz, maxDynamic*2*w)&^(2*w-1))
	if err != nil {
		return tags
	}
	for ; len(p) > 0; p = p[2*w:] {
		switch tag := elf.DynTag(m.layout.word(p)); tag {
		case elf.DT_NULL:
			return tags
		case elf.DT_HASH, elf.DT_GNU_HASH, elf.DT_STRTAB, elf.DT_STRSZ, elf.DT_SYMTAB, elf.DT_DEBUG:
			tags[tag] = m.layout.word(p[w:])
		}
	}
	return tags
}

// unrelocate returns the link-time address of a pointer in the dynamic segment. In memory, the dynamic linker has added
// the load bias to the pointer, except if the segment is read-only, as in the vDSO.
func (m *Image) unrelocate(addr, bias uint64) uint64 {
	if addr == 0 || addr >= m.lo && addr < m.hi {
		return addr
	}
	return addr - bias
}

// hashCount returns the number of symbols from DT_HASH (gABI, chapter 5, "Hash Table"), its field nchain; 0 if it
// cannot be read.
func (m *Image) hashCount(addr uint64) uint64 {
	if addr == 0 {
		return 0
	}
	p, err := m.at(addr, 8)
	if err != nil {
		return 0
	}
	return uint64(m.layout.order.Uint32(p[4:]))
}

// gnuHashCount returns the number of symbols from DT_GNU_HASH: the end of the chain of the highest bucket; 0 if it
// cannot be read.
func (m *Image) gnuHashCount(addr uint64) uint64 {
	if addr == 0 {
		return 0
	}
	p, err := m.at(addr, 16)
	if err != nil {
		return 0
	}
	order := m.layout.order
	buckets, first := uint64(order.Uint32(p)), uint64(order.Uint32(p[4:]))
	at := 16 + uint64(order.Uint32(p[8:]))*uint64(m.layout.addrSize()) // past the Bloom filter
	if p, err = m.at(addr+at, buckets*4); err != nil {
		return 0
	}
	last := uint64(0)
	for ; len(p) >= 4; p = p[4:] {
		last = max(last, uint64(order.Uint32(p)))
	}
	if last < first {
		return first
	}
	chain := at + buckets*4
	return last + m.chainLength(addr+chain+(last-first)*4)
}

// chainLength returns the number of hash values from addr to the end of their chain; 0 if they cannot be read.
func (m *Image) chainLength(addr uint64) uint64 {
	const step = 256
	for n := uint64(0); n < maxSymbols; {
		room := min(m.room(addr+n*4)/4, step)
		p, err := m.at(addr+n*4, room*4)
		if err != nil || room == 0 {
			return 0
		}
		for ; len(p) > 0; p = p[4:] {
			n++
			if m.layout.order.Uint32(p)&1 != 0 {
				return n
			}
		}
	}
	return 0
}
