package elfimage

import (
	"debug/elf"
	"errors"
	"fmt"
	"strings"
)

// Defined is DefinedSymbols for callers that need only the link-time addresses of the symbols.
func (m *Image) Defined(names ...string) (map[string]uint64, error) {
	symbols, err := m.DefinedSymbols(names...)
	if err != nil {
		return nil, err
	}
	found := make(map[string]uint64, len(symbols))
	for name, s := range symbols {
		found[name] = s.Addr
	}
	return found, nil
}

// DefinedSymbols looks up the names among the defined dynamic symbols, and returns the symbols that it finds, by name. Nearly
// all images have a GNU hash table. With it, DefinedSymbols reads only a few bytes for each name. For other images it reads all of
// .dynsym. The errors are the same as for Symbols.
func (m *Image) DefinedSymbols(names ...string) (map[string]Symbol, error) {
	found := make(map[string]Symbol, len(names))
	if t, ok := m.gnuHash(); ok {
		for _, name := range names {
			symbol, err := t.find(name)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", m.name, t.hash.name, err)
			}
			if symbol.Addr != 0 {
				found[name] = symbol
			}
		}
		return found, nil
	}
	wanted := make(map[string]bool, len(names))
	for _, name := range names {
		wanted[name] = true
	}
	symbols, err := m.Symbols(".dynsym")
	if err != nil {
		return nil, err
	}
	for s := range symbols {
		if wanted[s.Name] && s.Addr != 0 && s.Section != elf.SHN_UNDEF && found[s.Name].Addr == 0 {
			s.Name = strings.Clone(s.Name)
			found[s.Name] = s
		}
	}
	return found, nil
}

// gnuHash is a section of type SHT_GNU_HASH. It begins with a header of four words: the number of buckets, the index of
// the first symbol, the size of the Bloom filter in words, and the filter's shift. The filter follows, then the index
// of each bucket's first symbol, then the hash values of the symbols from the first one on. In the last hash value of a
// bucket, the lowest bit is set.
type gnuHash struct {
	m              *Image
	hash           *section
	symbols, names *section
	buckets, first uint64
	// bucketsAt and valuesAt are offsets in the section.
	bucketsAt, valuesAt uint64
}

// gnuHash reads the header of the table. The result is false if there is no usable table.
func (m *Image) gnuHash() (gnuHash, bool) {
	t := gnuHash{m: m, hash: m.find(".gnu.hash")}
	if t.hash == nil || t.hash.typ != elf.SHT_GNU_HASH {
		return t, false
	}
	link := func(n uint32, typ elf.SectionType) *section {
		if uint64(n) >= uint64(len(m.sections)) || m.sections[n].typ != typ {
			return nil
		}
		return &m.sections[n]
	}
	if t.symbols = link(t.hash.link, elf.SHT_DYNSYM); t.symbols == nil {
		return t, false
	}
	if t.names = link(t.symbols.link, elf.SHT_STRTAB); t.names == nil {
		return t, false
	}
	p, err := m.within(t.hash, 0, 16)
	if err != nil {
		return t, false
	}
	order := m.layout.order
	t.buckets, t.first = uint64(order.Uint32(p)), uint64(order.Uint32(p[4:]))
	t.bucketsAt = 16 + uint64(order.Uint32(p[8:]))*uint64(m.layout.addrSize())
	t.valuesAt = t.bucketsAt + 4*t.buckets
	return t, t.buckets > 0
}

// find returns the symbol of a name, or a Symbol with the address 0 if there is none.
func (t *gnuHash) find(name string) (Symbol, error) {
	hash := uint32(5381)
	for i := range len(name) {
		hash = hash*33 + uint32(name[i])
	}
	i, err := t.word(t.bucketsAt + 4*(uint64(hash)%t.buckets))
	for at := uint64(i); err == nil && at >= t.first && at < maxSymbols; at++ {
		var value uint32
		if value, err = t.word(t.valuesAt + 4*(at-t.first)); err != nil {
			break
		}
		if value|1 == hash|1 {
			symbol, err := t.symbol(at, name)
			if symbol.Addr != 0 || err != nil {
				return symbol, err
			}
		}
		if value&1 != 0 {
			break
		}
	}
	return Symbol{}, err
}

// symbol returns the symbol at an index if it has that name, else a Symbol with the address 0.
func (t *gnuHash) symbol(at uint64, name string) (Symbol, error) {
	size := uint64(t.m.layout.pick(24, 16))
	p, err := t.m.within(t.symbols, at*size, size)
	if err != nil {
		return Symbol{}, err
	}
	begin := uint64(t.m.layout.order.Uint32(p))
	text, err := t.m.within(t.names, begin, uint64(len(name))+1)
	if errors.Is(err, ErrMalformed) {
		return Symbol{}, nil // the symbol's name is shorter and ends with the section
	}
	s, _ := t.m.layout.parseSymbol(p, "")
	if err != nil || string(text) != name+"\x00" || s.Section == elf.SHN_UNDEF {
		return Symbol{}, err
	}
	s.Name = name
	return s, nil
}

func (t *gnuHash) word(off uint64) (uint32, error) {
	p, err := t.m.within(t.hash, off, 4)
	if err != nil {
		return 0, err
	}
	return t.m.layout.order.Uint32(p), nil
}

// within returns n bytes at an offset of a section that is not compressed.
func (m *Image) within(s *section, off, n uint64) ([]byte, error) {
	if off > s.size || n > s.size-off {
		return nil, fmt.Errorf("%w: %d bytes at %#x of %#x", ErrMalformed, n, off, s.size)
	}
	return m.src.bytes(s.offset+off, n)
}
