package dwarf_test

import (
	"path"
	"slices"
	"strings"

	"pg_stat_backtrace/unwind/symbol"
)

// class is a class of differences, with the reason and the side that is right. Every difference must belong to a
// known class. No class may excuse a mistake: see mistakes.
type class struct {
	name, why string
	is        func(c *comparison) bool
}

// comparison is one address at which the answers differ.
type comparison struct {
	tool              string
	ours, want, other chain
	// judge is the answer of LLVM's addr2line, nil if it is not installed. It decides if one reference has a known
	// fault and the other one has no answer.
	judge chain
	// symbols are the ELF symbols that cover the address. nearest are the last symbols that begin before it.
	symbols, nearest []string
	// arange is the unit's main source file if .debug_aranges has the address; ranged says whether it does.
	arange string
	ranged bool
	// entry reports whether an entry of a function covers the address, by another DWARF reader.
	entry func() bool
}

var classes = []class{
	{
		"no information, symbol only",
		"neither reference has a line of that address; the nearest ELF symbol is given, which may cover nothing",
		func(c *comparison) bool {
			return len(c.ours) == 0 && unknown(c.want) && (!c.ranged || c.judge != nil && c.judge[0] == place{}) &&
				(c.tool == binutils || unknown(c.other)) && (len(c.want) == 0 || c.isNearest(c.want[0].function))
		},
	},
	{
		"line of the code before",
		"no unit covers the address; elfutils gives the last line of the unit before, though its line table has ended",
		func(c *comparison) bool {
			return c.tool == elfutils && len(c.ours) == 0 && !c.ranged && len(c.want) == 1 && unknown(c.other)
		},
	},
	{
		"function without an entry",
		"the compiler merged the function with an equal one (-fipa-icf), or split it off, and DWARF has no entry for it; " +
			"the references give the ELF symbol. Here the user of this package puts it in",
		func(c *comparison) bool {
			return c.ours.samePlaces(c.want) && len(c.ours) == 1 && c.ours[0].function == "" &&
				slices.Contains(c.symbols, c.want[0].function) && !c.entry()
		},
	},
	{
		"name without linkage name",
		"binutils gives the ELF symbol for the innermost or outermost name where a function has no linkage name, also " +
			"for an inlined one, where that is wrong; elfutils, or LLVM where elfutils knows one name only, agrees with us",
		func(c *comparison) bool {
			return c.tool == binutils && c.ours.samePlaces(c.want) && c.ends(c.want) &&
				(slices.Equal(c.ours, c.other) || c.otherHasOne() && c.ours[0].function == c.other[0].function ||
					c.judged() || c.same(c.want, c.renamed))
		},
	},
	{
		"primary file of DWARF 5",
		"binutils 2.40 confuses the first two files of a DWARF 5 line table, and gives the unit's main file; elfutils " +
			"agrees with us",
		func(c *comparison) bool {
			return c.tool == binutils && c.ranged && len(c.other) > 0 && len(c.ours) > 0 &&
				c.ours[0].file == c.other[0].file && c.primary() &&
				(c.same(c.want, c.renamed) || c.judged() && c.ends(c.want))
		},
	},
	{
		"padding between functions",
		"the line table goes on in the padding behind a function, which belongs to no function; the references " +
			"name the function before, or what they found for the address asked before",
		func(c *comparison) bool {
			switch {
			case len(c.symbols) > 0 || len(c.want) == 0:
				return false
			case len(c.ours) == 0: // outside of the unit's ranges, too
				return len(c.want) == 1 && !c.ranged
			}
			if len(c.ours) != 1 || c.ours[0].function != "" {
				return false
			}
			if c.tool == binutils && unknown(c.want) {
				return c.isNearest(c.want[0].function) && c.judged() // it has the name, and no line
			}
			return c.want[0].line == c.ours[0].line &&
				(c.want[0].file == c.ours[0].file || c.tool == binutils && c.isPrimary(c.want[0].file))
		},
	},
	{
		"elfutils: the line only",
		"elfutils 0.188 finds units by .debug_aranges alone, and follows no reference from one unit to another (LTO): it " +
			"has the line, the ELF symbol and no inlined calls; binutils or LLVM agrees with us",
		func(c *comparison) bool {
			return c.tool == elfutils && len(c.want) == 1 && len(c.ours) > 0 &&
				(c.want[0].function == "" || slices.Contains(c.symbols, c.want[0].function)) &&
				(c.want[0].file == "" || c.want[0].file == c.ours[0].file && c.want[0].line == c.ours[0].line) &&
				(c.judged() || c.ours.samePlaces(c.other) && c.same(c.other, c.renamed))
		},
	},
	{
		"references differ",
		"inlined calls overlap, or elfutils goes on in another function: the references contradict each other, and the " +
			"other one agrees with us",
		func(c *comparison) bool {
			return len(c.other) > 0 && !unknown(c.other) && c.ours.samePlaces(c.other) && c.same(c.other, c.renamed)
		},
	},
	{
		"elfutils: another instance",
		"where a function is inlined several times in one, elfutils 0.188 may give the calls around another of its " +
			"instances, and binutils does not follow into a supplementary file and has the line only; LLVM, which goes by " +
			"the ranges of the entries, agrees with us",
		func(c *comparison) bool {
			e, b := c.want, c.other
			if c.tool == binutils {
				e, b = b, e
			}
			return len(c.ours) > 1 && len(e) > 1 && len(b) == 1 && slices.Contains(c.symbols, b[0].function) &&
				b[0].file == c.ours[0].file && b[0].line == c.ours[0].line &&
				e[0] == c.ours[0] && e[len(e)-1].function == c.ours[len(c.ours)-1].function &&
				c.ours.samePlaces(c.judge) && c.same(c.judge, func(a, b string) bool { return b == "" && a == e[0].function })
		},
	},
}

// unknown reports whether a reference has no line, or was not asked.
func unknown(c chain) bool { return len(c) == 0 || len(c) == 1 && c[0].file == "" }

// isNearest reports whether a name belongs to one of the symbols before the address, or is empty.
func (c *comparison) isNearest(name string) bool {
	return name == "" || slices.Contains(c.nearest, name) || slices.Contains(c.symbols, name)
}

// same compares names: where they are not equal, excused must agree.
func (c *comparison) same(with chain, excused func(a, b string) bool) bool {
	return slices.EqualFunc(c.ours, with, func(a, b place) bool {
		return a.function == b.function || excused(a.function, b.function)
	})
}

// ends reports whether the chains have the same names, except for the first and the last one, which may be the ELF
// symbol.
func (c *comparison) ends(want chain) bool {
	for i := range c.ours {
		a, b := c.ours[i].function, want[i].function
		if a != b && (i > 0 && i < len(c.ours)-1 || !slices.Contains(c.symbols, b)) {
			return false
		}
	}
	return len(c.ours) == len(want)
}

// otherHasOne reports whether the other reference has only the innermost place, and agrees on it.
func (c *comparison) otherHasOne() bool {
	return len(c.ours) > 0 && len(c.other) == 1 && c.other[0].file == c.ours[0].file && c.other[0].line == c.ours[0].line
}

// judged reports whether LLVM agrees with us.
func (c *comparison) judged() bool {
	return len(c.judge) > 0 && c.ours.samePlaces(c.judge) && c.same(c.judge, c.renamed)
}

// renamed reports whether b is the ELF symbol of the source name a: an alias, a mangled name, or a clone. Go's linker
// writes a dot for its middle dot.
func (c *comparison) renamed(a, b string) bool {
	if a == "" || !slices.Contains(c.symbols, b) {
		return false
	}
	if slices.Contains(c.symbols, a) || b == strings.ReplaceAll(a, "·", ".") {
		return true
	}
	return strings.HasPrefix(b, a+".") || slices.ContainsFunc(strings.FieldsFunc(symbol.Demangle(b), func(r rune) bool {
		return strings.ContainsRune(" :<>(),&*", r)
	}), func(word string) bool { return word == a })
}

// primary reports whether the reference has the same lines, and any different file is the unit's main file.
func (c *comparison) primary() bool {
	return slices.EqualFunc(c.ours, c.want, func(a, b place) bool {
		return a.line == b.line && (a.file == b.file || c.isPrimary(b.file))
	})
}

// isPrimary reports whether a file is the main one of the unit.
func (c *comparison) isPrimary(file string) bool {
	return c.ranged && path.Base(file) == path.Base(c.arange)
}
