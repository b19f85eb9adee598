package selfnames

import (
	"math"
	"path"
	"slices"
	"strings"
)

// includers maps each PostgreSQL source file that another source file includes to the including file.
var includers = map[string]string{
	"like_match.c": "like.c", "levenshtein.c": "varlena.c", "regc_color.c": "regcomp.c", "regc_cvec.c": "regcomp.c",
	"regc_lex.c": "regcomp.c", "regc_locale.c": "regcomp.c", "regc_nfa.c": "regcomp.c", "regc_pg_locale.c": "regcomp.c",
	"rege_dfa.c": "regexec.c",
}

// names collects the facts about all functions without a symbol in the compact form Names. major is the version of the
// table that was used, or 0.
func (e *evidence) names(major int) *Names {
	b := builder{strings: make(map[string]uint16), records: make(map[record]uint16), parts: make(map[int32]uint16)}
	n := &b.n
	n.base, n.major = e.base, major
	for i := range e.fns {
		f := &e.fns[i]
		if f.name != "" {
			continue
		}
		at, ok := e.fact(&b, int32(i))
		if !ok {
			continue
		}
		offset := f.start - e.base
		for uint64(len(n.blocks)) <= offset>>16 {
			n.blocks = append(n.blocks, uint32(len(n.low)))
		}
		n.low, n.facts = append(n.low, uint16(offset)), append(n.facts, at)
	}
	n.blocks = append(n.blocks, uint32(len(n.low)))
	n.text = strings.Clone(b.text.String())
	n.low, n.facts, n.parts = slices.Clip(n.low), slices.Clip(n.facts), slices.Clip(n.parts)
	n.records, n.starts = slices.Clip(n.records), slices.Clip(n.starts)
	return n
}

// fact returns the number that Names.facts stores for a function or part (see Names). The result is false if there is
// no fact about it, or if the lists of Names are full.
func (e *evidence) fact(b *builder, fn int32) (uint16, bool) {
	s := &e.all[e.of[fn]]
	if (s.exported != "" || s.name != "") && fn != s.root {
		at, known := b.parts[s.root]
		if !known {
			if len(b.n.parts) >= partBit {
				return 0, false
			}
			at = uint16(len(b.n.parts))
			b.parts[s.root] = at
			b.n.parts = append(b.n.parts, uint32(e.fns[s.root].start-e.base))
		}
		return at | partBit, true
	}
	r, ok := e.record(b, s)
	if !ok {
		return 0, false
	}
	at, known := b.records[r]
	if !known {
		if len(b.n.records) >= partBit {
			return 0, false
		}
		at = uint16(len(b.n.records))
		b.records[r] = at
		b.n.records = append(b.n.records, r)
	}
	if r.kind&isName != 0 {
		b.n.named++
	}
	return at, true
}

// maxStrings bounds the distinct strings in the facts of an image.
const maxStrings = 1<<16 - 2

// builder makes Names. Its maps have the number of each string, record and part that Names already contains.
type builder struct {
	n       Names
	strings map[string]uint16
	records map[record]uint16
	parts   map[int32]uint16
	text    strings.Builder
}

// string returns the number of a string; 0 if the string is empty, too long, or does not fit.
func (b *builder) string(s string) uint16 {
	if s == "" || len(s) > math.MaxUint8 {
		return 0
	}
	i, ok := b.strings[s]
	if !ok {
		if len(b.strings) >= maxStrings {
			return 0
		}
		if len(b.strings)%stride == 0 {
			b.n.starts = append(b.n.starts, uint32(b.text.Len()))
		}
		b.text.WriteByte(byte(len(s)))
		b.text.WriteString(s)
		i = uint16(len(b.strings) + 1)
		b.strings[s] = i
	}
	return i
}

// record returns the name or the note of a function. The result is false if there is neither.
func (e *evidence) record(b *builder, s *subject) (record, bool) {
	if s.name != "" {
		r := record{kind: isName}
		r.of[0] = b.string(s.name)
		return r, r.of[0] != 0
	}
	r := record{file: b.string(base(s.file))}
	names := e.distinctNames(s.reports)
	if r.kind = hasCode; len(names) == 0 {
		names = e.exportedTakers(s)
		r.kind = isTaken
	}
	for i, name := range names {
		if i < len(r.of) {
			r.of[i] = b.string(name)
		}
	}
	if r.of[0] == 0 {
		r.kind = 0
	}
	if len(names) > len(r.of) {
		r.kind |= hasMore
	}
	if s.known() {
		r.kind |= isStatic
	}
	return r, r.of[0] != 0 || r.file != 0
}

// base returns the base name of the source file that the compiler was called for.
func base(file string) string {
	if file == "" {
		return ""
	}
	if by, ok := includers[path.Base(file)]; ok {
		return by
	}
	return path.Base(file)
}

// distinctNames returns the names at addresses, sorted, each once.
func (e *evidence) distinctNames(at []uint64) (names []string) {
	for _, addr := range at {
		names = append(names, e.labels[addr])
	}
	return distinct(names)
}

// exportedTakers returns the names of the exported functions that have the subject's address in their code.
func (e *evidence) exportedTakers(s *subject) (names []string) {
	for _, t := range s.takers {
		if name := e.all[t].exported; name != "" {
			names = append(names, name)
		}
	}
	return distinct(names)
}
