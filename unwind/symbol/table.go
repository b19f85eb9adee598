// Package symbol finds the correct names of code addresses.
//
// A Table contains the functions of one image, from the image's own symbol tables and from its separate debug file. A
// function's name is used only for addresses inside the symbol's size, and inside the function in the call frame
// information. If no symbol covers an address, there is no answer: the nearest symbol is never used instead.
//
// JITEntries and OpenJIT read the list that a program with a JIT compiler provides for debuggers: GDB's JIT interface
// ("Debugging with GDB", section "JIT Compilation Interface"). They read memory through a function of the caller.
// PerfMap parses the files perf-PID.map.
//
// The package must not know of processes, load addresses or where files are found: addresses are link-time addresses.
package symbol

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"pg_stat_backtrace/unwind/budget"
	"pg_stat_backtrace/unwind/elfimage"
)

// Symbol is a function of a Table.
type Symbol struct {
	// Name is the linker's name, without a symbol version; see Demangle.
	Name string
	// Addr is the link-time address of the function's first byte, Size its length in bytes.
	Addr, Size uint64
}

// Table is a sorted set of functions. It is immutable and safe for concurrent use. It takes about 20 bytes for each
// function, and the bytes of the names.
type Table struct {
	addrs []uint64 // ascending; for equal addresses the larger size first
	sizes []uint32
	// enclosing has, for each function, the index plus one of the nearest function before it that ends later; 0: none.
	// If functions are nested, this is the next outer function.
	enclosing []uint32
	// nameEnds has the end of each function's name in the field names, which has all names in the order of addrs.
	nameEnds []uint32
	names    string
}

const (
	// maxNesting limits the enclosing functions that a look-up tries. Real code nests two levels deep.
	maxNesting = 32
	// maxReserved limits the number of symbols for which memory is reserved at once.
	maxReserved = 1 << 16
)

// ErrTooLarge means that an image has more names than a table can contain.
var ErrTooLarge = errors.New("symbol table too large")

// NewTable collects the functions of .symtab and .dynsym of the images. All images must belong to one program: the
// mapped file and its separate debug file. An image without a symbol table adds nothing. If an image cannot be read,
// NewTable returns an error, together with the table of the other images.
func NewTable(images ...*elfimage.Image) (*Table, error) {
	var b builder
	var errs error
	for _, m := range images {
		for _, name := range []string{".symtab", ".dynsym"} {
			symbols, err := m.Symbols(name)
			if err != nil {
				if !errors.Is(err, elfimage.ErrNoSection) {
					errs = errors.Join(errs, fmt.Errorf("symbol table: %w", err))
				}
				continue
			}
			count := m.SymbolCount(name)
			b.all = slices.Grow(b.all, min(count, maxReserved))
			b.input += max(m.Size(), int64(count)*symbolBytes)
			if !b.add(m, symbols) {
				errs = errors.Join(errs, fmt.Errorf("%s: %s: %w", m.Name(), name, ErrTooLarge))
			}
		}
	}
	return b.table(), errs
}

// builder collects the candidates of all images.
type builder struct {
	all []candidate
	// The field bytes is the total size of the symbols' names, and the field input the size of the symbol tables or of
	// their files. Both are needed because a small file can have very many names that overlap.
	bytes, input int64
}

// symbolBytes is the size of a symbol in a table.
const symbolBytes = 24

// add adds the symbols that may name code to the list all. It returns false if the names of all images exceed the
// budget.
func (b *builder) add(m *elfimage.Image, symbols iter.Seq[elfimage.Symbol]) bool {
	for s := range symbols {
		if !m.InCode(s) {
			continue
		}
		if b.bytes += int64(len(s.Name)); b.bytes > budget.Names.Of(b.input) {
			return false
		}
		if c, ok := newCandidate(s); ok {
			b.all = append(b.all, c)
		}
	}
	return true
}

// table makes a Table of the best candidate for each range of addresses.
func (b *builder) table() *Table {
	all := b.sorted()
	t := &Table{
		addrs: make([]uint64, len(all)), sizes: make([]uint32, len(all)),
		enclosing: make([]uint32, len(all)), nameEnds: make([]uint32, len(all)),
	}
	total := 0
	for _, c := range all {
		total += len(c.name)
	}
	var names strings.Builder
	names.Grow(total)
	for i, c := range all {
		names.WriteString(c.name)
		t.addrs[i], t.sizes[i] = c.addr, c.size
		t.nameEnds[i] = uint32(names.Len())
		t.enclosing[i] = t.enclosingOf(i)
	}
	t.names = names.String()
	return t
}

// sorted returns the best candidate for each range of addresses, in the order of a Table.
func (b *builder) sorted() []*candidate {
	order := b.byAddress()
	all := make([]*candidate, len(order))
	first := 0 // index of the first candidate with the current address
	for i := range order {
		all[i] = &b.all[order[i]]
		if i+1 < len(order) && b.all[order[i+1]].addr == all[i].addr {
			continue
		}
		if same := all[first : i+1]; len(same) > 1 {
			slices.SortFunc(same, compareCandidates)
		}
		first = i + 1
	}
	return slices.CompactFunc(all, func(a, b *candidate) bool { return a.addr == b.addr && a.size == b.size })
}

// byAddress returns the indexes of the candidates in the order of their addresses. It is a radix sort, from the lowest
// digit on. It must be fast: symbol tables are not sorted, and the first look-up waits for it.
func (b *builder) byAddress() []uint32 {
	const digit = 11 // bits
	order, other := make([]uint32, len(b.all)), make([]uint32, len(b.all))
	low, high := ^uint64(0), uint64(0)
	for i := range b.all {
		order[i] = uint32(i)
		low, high = min(low, b.all[i].addr), max(high, b.all[i].addr)
	}
	for shift := 0; len(order) > 1 && (high-low)>>shift > 0; shift += digit {
		of := func(i uint32) uint64 { return (b.all[i].addr - low) >> shift & (1<<digit - 1) }
		var next [1<<digit + 1]uint32
		for _, i := range order {
			next[of(i)+1]++
		}
		for d := 1; d < len(next); d++ {
			next[d] += next[d-1]
		}
		for _, i := range order {
			other[next[of(i)]] = i
			next[of(i)]++
		}
		order, other = other, order
	}
	return order
}

// enclosingOf computes the element of enclosing for function i. It starts with the function before i and goes outwards
// to a function that ends after the end of i.
func (t *Table) enclosingOf(i int) uint32 {
	end := t.end(i)
	j := uint32(i)
	for j > 0 && t.end(int(j-1)) <= end {
		j = t.enclosing[j-1]
	}
	return j
}

// end returns the address after function i. It cannot overflow, because newCandidate has rejected such functions.
func (t *Table) end(i int) uint64 { return t.addrs[i] + uint64(t.sizes[i]) }

// Lookup returns the function that contains addr, the innermost if there are several. The result is false if there is
// none. fdeStart and fdeEnd limit the range of the call frame information that covers addr. The function must begin
// inside this range. If no call frame information covers addr, fdeEnd is 0.
func (t *Table) Lookup(addr, fdeStart, fdeEnd uint64) (Symbol, bool) {
	i, found := slices.BinarySearch(t.addrs, addr)
	if found {
		for i < len(t.addrs) && t.addrs[i] == addr {
			i++
		}
	}
	// i is one more than the index of the last function that begins at or before addr.
	for range maxNesting {
		if i == 0 {
			return Symbol{}, false
		}
		if addr < t.end(i-1) {
			break
		}
		i = int(t.enclosing[i-1])
	}
	if i == 0 || addr >= t.end(i-1) {
		return Symbol{}, false
	}
	s := t.at(i - 1)
	if fdeEnd != 0 && (s.Addr < fdeStart || s.Addr >= fdeEnd || addr < fdeStart || addr >= fdeEnd) {
		return Symbol{}, false
	}
	return s, true
}

// Neighbours returns the last function that ends before a range of addresses, and the first function that begins after
// the range. ok is false if one of them does not exist.
func (t *Table) Neighbours(start, end uint64) (before, after Symbol, ok bool) {
	i, _ := slices.BinarySearch(t.addrs, start)
	j, _ := slices.BinarySearch(t.addrs, end)
	for i > 0 && t.end(i-1) > start {
		i--
	}
	if i == 0 || j == len(t.addrs) {
		return Symbol{}, Symbol{}, false
	}
	return t.at(i - 1), t.at(j), true
}

// at returns function i.
func (t *Table) at(i int) Symbol {
	start := uint32(0)
	if i > 0 {
		start = t.nameEnds[i-1]
	}
	return Symbol{Name: t.names[start:t.nameEnds[i]], Addr: t.addrs[i], Size: uint64(t.sizes[i])}
}

// Len returns the number of functions.
func (t *Table) Len() int { return len(t.addrs) }

// All yields the functions in the order of their addresses.
func (t *Table) All() iter.Seq[Symbol] {
	return func(yield func(Symbol) bool) {
		for i := range t.addrs {
			if !yield(t.at(i)) {
				return
			}
		}
	}
}

// Coverage counts the functions in the call frame information, given as ranges [start, end), and how many of them have
// a name. The callback other reports whether another source than symbols names the function at an address.
func (t *Table) Coverage(fdes iter.Seq2[uint64, uint64], other func(addr uint64) bool) (named, total int) {
	for start, end := range fdes {
		total++
		if _, ok := t.Lookup(start, start, end); ok || other(start) {
			named++
		}
	}
	return named, total
}
