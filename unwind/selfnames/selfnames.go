// Package selfnames derives names of functions, and notes on them, from the code of a stripped PostgreSQL image.
//
// Every ereport calls errfinish with the names of the source file and of the function. Jumps connect the parts of one
// function, and pointers show which function takes the address of another one. A table of the functions in PostgreSQL's
// source (see Tables) then names many static functions. Most of the others get a note.
//
// A derived name is used only where rules prove it; everything else is a note. The package must not know of processes,
// load addresses or where files are found: addresses are link-time addresses. Images are foreign input: time and memory
// are bounded, and a damaged image gives fewer facts.
package selfnames

import (
	"errors"
	"slices"
	"strings"

	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/unwind/symbol"
)

// Errors that Derive returns.
var (
	// ErrForeign means that the image reports no errors as PostgreSQL does: there is nothing to derive.
	ErrForeign = errors.New("no code of PostgreSQL")
	// ErrTooLarge means that the image has more code, functions or pointers than the limits of this package.
	ErrTooLarge = errors.New("too much code to derive names from")
)

// Fact is the information from the code of an image about one of its functions, or about a part of a function.
type Fact struct {
	// Name is the function's name where the rules prove it, else empty.
	Name string
	// Part is the entry of the function to which this separate part belongs. It is 0 for a function that begins at
	// its entry.
	Part uint64
	// Note is other information, as a remark for a reader. It is empty if Name or Part is set.
	Note string
}

// Names are the facts of one image. They are immutable and safe for concurrent use.
type Names struct {
	base uint64
	// low are the lower 16 bits of the starts of the functions and parts without a symbol, from base, ascending; blocks
	// is for each value of the upper bits the place of the first.
	low    []uint16
	blocks []uint32
	facts  []uint16 // index into records, or into parts if partBit is set
	parts  []uint32 // entries of functions, from base
	// records are the distinct facts. Strings are numbers in the order of text, 0 for none.
	records []record
	text    string   // strings, each behind a byte with its length
	starts  []uint32 // of every stride-th string
	named   int
	major   int
}

const (
	partBit = 1 << 15
	stride  = 16
)

// record is a fact: a name or a note. of contains a name, or two functions.
type record struct {
	of   [2]uint16
	file uint16
	kind uint8
}

// The kinds of records, of which static and more go with others.
const (
	isName = 1 << iota
	hasCode
	isTaken
	isStatic
	hasMore
)

// At returns the fact about the function or part that begins at a link-time address.
func (n *Names) At(start uint64) (Fact, bool) {
	if n == nil || start < n.base || (start-n.base)>>16+1 >= uint64(len(n.blocks)) {
		return Fact{}, false
	}
	block := (start - n.base) >> 16
	from := n.blocks[block]
	i, ok := slices.BinarySearch(n.low[from:n.blocks[block+1]], uint16(start-n.base))
	if !ok {
		return Fact{}, false
	}
	at := n.facts[int(from)+i]
	if at&partBit != 0 {
		return Fact{Part: n.base + uint64(n.parts[at&^partBit])}, true
	}
	r := &n.records[at]
	if r.kind&isName != 0 {
		return Fact{Name: n.string(r.of[0])}, true
	}
	return Fact{Note: n.note(r)}, true
}

// Derived returns how many functions have a derived name, and how many functions and parts have a note.
func (n *Names) Derived() (named, noted int) {
	if n == nil {
		return 0, 0
	}
	return n.named, len(n.facts) - n.named
}

// Major returns the major version of the used table, or 0.
func (n *Names) Major() int {
	if n == nil {
		return 0
	}
	return n.major
}

// Size returns about how many bytes the facts take in memory.
func (n *Names) Size() int {
	const record = 8
	return 2*len(n.low) + 2*len(n.facts) + 4*len(n.parts) + record*len(n.records) + 4*len(n.starts) + len(n.text)
}

func (n *Names) string(i uint16) string {
	if i == 0 {
		return ""
	}
	at := n.starts[(i-1)/stride]
	for range (i - 1) % stride {
		at += 1 + uint32(n.text[at])
	}
	return n.text[at+1 : at+1+uint32(n.text[at])]
}

// note words a fact that is no name.
func (n *Names) note(r *record) string {
	file := n.string(r.file)
	var said []string
	switch {
	case r.kind&hasCode != 0:
		said = append(said, "has code of "+n.list(r))
	case r.kind&isTaken != 0:
		said = append(said, "address taken in "+n.list(r))
	default:
		file = "in " + file
	}
	if file != "" {
		said = append(said, file)
	}
	text := strings.Join(said, "; ")
	if r.kind&isStatic != 0 {
		return "static, " + text
	}
	return text
}

// list words one or two names, and that there are more.
func (n *Names) list(r *record) string {
	text := symbol.Demangle(n.string(r.of[0]))
	if r.of[1] == 0 {
		return text
	}
	text += ", " + symbol.Demangle(n.string(r.of[1]))
	if r.kind&hasMore != 0 {
		text += ", …"
	}
	return text
}

// Derive derives the facts of an image with the call frame information and the symbols that it has itself. tables may
// be nil: there are notes only, then. The error is ErrForeign, ErrTooLarge or the error of
// reading the image.
func Derive(m *elfimage.Image, frames *cfi.Table, exported *symbol.Table, tables *Tables) (*Names, error) {
	if frames == nil || exported == nil || m.AddrSize() != 8 || machines[m.Machine()] == nil {
		return nil, ErrForeign
	}
	c, err := openCode(m, frames, exported)
	if err != nil {
		return nil, err
	}
	if err := c.sweep(); err != nil {
		return nil, err
	}
	groups := c.group()
	e := c.gather(groups)
	rules := e.prove(tables)
	return e.names(rules), nil
}
