package symbol

import (
	"cmp"
	"debug/elf"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"

	"pg_stat_backtrace/unwind/elfimage"
)

// candidate is a symbol that may become the name of code in a Table.
type candidate struct {
	addr uint64
	size uint32
	// bind ranks symbols for the same code: 0 for global, 1 for weak, 2 for local symbols. The symbol with the lowest
	// rank gives the name.
	bind        uint8
	underscores uint8
	name        string
}

// newCandidate decides, by the symbol alone, whether the symbol may name code. The result is false if it may not.
func newCandidate(s elfimage.Symbol) (candidate, bool) {
	switch s.Type {
	case elf.STT_FUNC, elf.STT_GNU_IFUNC, elf.STT_NOTYPE: // NOTYPE: functions in assembly without the directive .type
	default:
		return candidate{}, false
	}
	// No function has 4 GiB. A symbol with such a size would hide all functions after it.
	if s.Size == 0 || s.Size > math.MaxUint32 || s.Addr+s.Size < s.Addr {
		return candidate{}, false
	}
	c := candidate{addr: s.Addr, size: uint32(s.Size), bind: bindRank(s.Bind), name: unversioned(s.Name)}
	if !goodName(c.name) {
		return candidate{}, false
	}
	n := len(c.name) - len(strings.TrimLeft(c.name, "_"))
	c.underscores = uint8(min(n, math.MaxUint8))
	return c, true
}

func bindRank(b elf.SymBind) uint8 {
	const gnuUnique = elf.STB_LOOS
	switch b {
	case elf.STB_GLOBAL, gnuUnique:
		return 0
	case elf.STB_WEAK:
		return 1
	default:
		return 2
	}
}

// unversioned removes the version from a symbol's name: from name@V or name@@V.
func unversioned(name string) string {
	if i := strings.IndexByte(name, '@'); i > 0 {
		return name[:i]
	}
	return name
}

// goodName reports whether a name can be used in a line of output. The name must not be empty, a local label of the
// assembler or a mapping symbol ($x, $d). It must be valid UTF-8 without white space and control characters.
func goodName(name string) bool {
	if name == "" || strings.HasPrefix(name, ".L") || name[0] == '$' {
		return false
	}
	for _, r := range name {
		if r > ' ' && r < unicode.MaxASCII {
			continue
		}
		if r == utf8.RuneError || unicode.IsSpace(r) || !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// compareCandidates orders candidates by address, then the larger size first, then the better name first. No two
// different candidates are equal in this order. So the choice among symbols for the same code does not depend on the
// order of the symbol table or on stripping.
func compareCandidates(a, b *candidate) int {
	switch {
	case a.addr != b.addr:
		return cmp.Compare(a.addr, b.addr)
	case a.size != b.size:
		return cmp.Compare(b.size, a.size)
	case a.bind != b.bind:
		return cmp.Compare(a.bind, b.bind)
	case a.underscores != b.underscores:
		return cmp.Compare(a.underscores, b.underscores)
	case len(a.name) != len(b.name):
		return cmp.Compare(len(a.name), len(b.name))
	}
	return cmp.Compare(a.name, b.name)
}
