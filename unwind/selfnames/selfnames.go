// Package selfnames derives names of functions, and notes on them, from the code of a stripped PostgreSQL image.
//
// Every ereport calls errfinish with the names of the source file and of the function. Jumps connect the parts of a
// function, and pointers show which functions take the address of another function. With a table of the functions in
// PostgreSQL's source (see Tables), the package names many static functions. Most other functions get a note.
//
// A function gets a derived name only if the rules prove it; all other information is a note. The package must not know
// of processes, load addresses or where files are found: addresses are link-time addresses. Images may be damaged or
// hostile: time and memory are bounded, and a damaged image gives fewer facts.
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
	// ErrForeign means that the image does not report errors as PostgreSQL does. So no facts can be derived.
	ErrForeign = errors.New("no code of PostgreSQL")
	// ErrTooLarge means that the image has more code, functions or pointers than the limits of this package.
	ErrTooLarge = errors.New("too much code to derive names from")
)

// Fact is the information from the code of an image about one of its functions, or about a part of a function.
type Fact struct {
	// Name is the function's name if the rules prove it, else empty.
	Name string
	// Part is the link-time address of a function's entry, if the fact is about a part of the function that the
	// compiler has moved elsewhere. It is 0 for a function that begins at its entry.
	Part uint64
	// Note is a remark for a reader, for example the source file. It is empty if Name or Part is set.
	Note string
}

// Names are the facts of one image. They are immutable and safe for concurrent use.
type Names struct {
	base uint64
	// The list low has the lower 16 bits of the start addresses, relative to base, of the functions and parts without a
	// symbol, in ascending order. The list blocks has, for each value of the upper bits, the index in low of the first
	// start with these upper bits.
	low    []uint16
	blocks []uint32
	facts  []uint16 // of each element of low: index into records, or into parts if partBit is set
	parts  []uint32 // addresses of functions' entries, relative to base
	// records are the distinct facts. They refer to strings by number: 1 is the first string in the field text, 0 is no
	// string.
	records []record
	text    string   // strings, each after a byte with its length
	starts  []uint32 // offsets in text of every stride-th string
	named   int
	major   int
}

const (
	partBit = 1 << 15
	stride  = 16
)

// record is a fact: a name or a note. The field of has the numbers of strings: the name, or up to two functions for the
// note. The field file is the number of the source file's name.
type record struct {
	of   [2]uint16
	file uint16
	kind uint8
}

// The kinds of records. isStatic and hasMore are set in addition to another kind.
const (
	isName = 1 << iota
	hasCode
	isTaken
	isStatic
	hasMore
)

// At returns the fact about the function or part that begins at a link-time address. The result is false if there is no
// fact.
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

// Derived returns how many functions have a derived name, and how many functions and parts have another fact.
func (n *Names) Derived() (named, noted int) {
	if n == nil {
		return 0, 0
	}
	return n.named, len(n.facts) - n.named
}

// Major returns the major version of the table that was used; 0: none.
func (n *Names) Major() int {
	if n == nil {
		return 0
	}
	return n.major
}

// Size returns approximately how many bytes of memory the facts take.
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

// note returns the text of a fact that is no name.
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

// list returns the text for one or two functions, with "…" if there are more.
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

// Derive derives the facts of an image. frames are the image's own call frame information, exported its own symbols. If
// tables is nil, the functions get notes only. The error is ErrForeign, ErrTooLarge or the error of reading the image.
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
