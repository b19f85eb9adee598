package selfnames_test

import (
	"cmp"
	"debug/dwarf"
	"debug/elf"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pg_stat_backtrace/unwind/selfnames"
	"pg_stat_backtrace/unwind/symbol"
)

// clone matches the suffixes that compilers append to clones and parts of functions. The code does not contain them.
var clone = regexp.MustCompile(`\.(part|isra|constprop|cold|lto_priv|localalias|llvm)(\.\d+)?`)

// truth is the data from the symbols and the debugging information of a file about its functions, by address.
type truth struct {
	names map[uint64][]string
	files map[uint64]string
	// inlined are the names of the functions that are inlined into a function or a part, and its own; nil if the file
	// has no debugging information.
	inlined map[uint64][]string
	// mingled is set after link-time optimization, with which no table is used.
	mingled bool
}

// readTruth reads .symtab; false if there is none.
func readTruth(t *testing.T, file string) (truth, bool) {
	t.Helper()
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	symbols, err := f.Symbols()
	if err != nil {
		return truth{}, false
	}
	out := truth{names: make(map[uint64][]string), files: make(map[uint64]string)}
	current := ""
	for _, s := range symbols {
		switch elf.ST_TYPE(s.Info) {
		case elf.STT_FILE:
			current = s.Name
			out.mingled = out.mingled || current == "<artificial>"
		case elf.STT_FUNC, elf.STT_NOTYPE:
			out.names[s.Value] = append(out.names[s.Value], clone.ReplaceAllString(s.Name, ""))
			if elf.ST_BIND(s.Info) == elf.STB_LOCAL {
				out.files[s.Value] = current
			}
		default:
		}
	}
	if f.Section(".debug_info") != nil {
		out.readInlined(t, f)
	}
	return out, true
}

// readInlined reads which functions are inlined where.
func (tr *truth) readInlined(t *testing.T, f *elf.File) {
	t.Helper()
	data, err := f.DWARF()
	if err != nil {
		t.Fatal(err)
	}
	tr.inlined = make(map[uint64][]string)
	r := inlineReader{
		data: data, names: make(map[dwarf.Offset]string), origins: make(map[dwarf.Offset]dwarf.Offset),
		inside: make(map[uint64][]dwarf.Offset),
	}
	r.readAll(t)
	for start, all := range r.inside {
		for _, at := range all {
			tr.inlined[start] = append(tr.inlined[start], r.name(at))
		}
		// Link-time optimization leaves no names of source files in .symtab.
		if file, local := tr.files[start]; local && !strings.HasSuffix(file, ".c") {
			tr.files[start] = r.file(all[0])
		}
	}
}

// inlineReader reads all debugging information.
type inlineReader struct {
	data    *dwarf.Data
	names   map[dwarf.Offset]string
	origins map[dwarf.Offset]dwarf.Offset
	// inside are the entries of functions by the starts of the code that they are in. A function precedes the functions
	// that are inlined into it.
	inside map[uint64][]dwarf.Offset
	starts []uint64 // of the function that is being read
	units  []unit   // ascending
}

// unit is a source file that the compiler was given.
type unit struct {
	at   dwarf.Offset
	file string
}

// origin returns the entry that has the name of the function.
func (r *inlineReader) origin(at dwarf.Offset) dwarf.Offset {
	const chain = 4
	for range chain {
		if r.names[at] != "" || r.origins[at] == 0 {
			break
		}
		at = r.origins[at]
	}
	return at
}

func (r *inlineReader) name(at dwarf.Offset) string { return r.names[r.origin(at)] }

// file returns the source file of a function.
func (r *inlineReader) file(at dwarf.Offset) string {
	at = r.origin(at)
	i, _ := slices.BinarySearchFunc(r.units, at, func(u unit, at dwarf.Offset) int { return cmp.Compare(u.at, at) })
	if i == 0 {
		return ""
	}
	return r.units[i-1].file
}

func (r *inlineReader) readAll(t *testing.T) {
	t.Helper()
	depth, from := 0, 0
	for all := r.data.Reader(); ; {
		e, err := all.Next()
		if err != nil {
			t.Fatal(err)
		}
		if e == nil {
			break
		}
		if e.Tag == 0 {
			depth--
			continue
		}
		if depth <= from {
			r.starts = nil
		}
		if r.entry(e) {
			from = depth
		}
		if e.Children {
			depth++
		}
	}
}

// entry reads one entry, and reports whether it describes a function with code.
func (r *inlineReader) entry(e *dwarf.Entry) (function bool) {
	if name, ok := e.Val(dwarf.AttrName).(string); ok {
		r.names[e.Offset] = name
	}
	for _, at := range []dwarf.Attr{dwarf.AttrAbstractOrigin, dwarf.AttrSpecification} {
		if origin, ok := e.Val(at).(dwarf.Offset); ok {
			r.origins[e.Offset] = origin
		}
	}
	switch e.Tag {
	case dwarf.TagCompileUnit:
		r.units = append(r.units, unit{e.Offset, path.Base(r.names[e.Offset])})
		return false
	case dwarf.TagSubprogram:
		ranges, err := r.data.Ranges(e)
		if err != nil || len(ranges) == 0 {
			return false
		}
		r.starts = nil
		for _, rg := range ranges {
			r.starts = append(r.starts, rg[0])
		}
		function = true
	case dwarf.TagInlinedSubroutine:
	default:
		return false
	}
	for _, s := range r.starts {
		r.inside[s] = append(r.inside[s], e.Offset)
	}
	return function
}

// shares counts the functions and parts that the call frame information of a file lists.
type shares struct {
	total, symbol, part, named, code, taken, file, nothing int
	wrongPart, wrongName, wrongCode, wrongFile             int
	// unchecked counts notes on functions that the debugging information does not have.
	unchecked int
	// major is the version of the used table.
	major int
}

// count counts a fact, and returns the parts of its note.
func (s *shares) count(fact selfnames.Fact, ok bool) (what, file string) {
	what, file, _ = strings.Cut(strings.TrimPrefix(fact.Note, "static, "), "; ")
	switch {
	case !ok:
		s.nothing++
	case fact.Name != "":
		s.named++
	case fact.Part != 0:
		s.part++
	case strings.HasPrefix(what, "has code of "):
		s.code++
	case strings.HasPrefix(what, "address taken in "):
		s.taken++
	default:
		s.file++
		return "", strings.TrimPrefix(what, "in ")
	}
	return what, file
}

// check compares the fact about a function with the truth.
func (s *shares) check(t *testing.T, tr *truth, n *selfnames.Names, symbols *symbol.Table, start uint64) {
	t.Helper()
	fact, ok := n.At(start)
	what, file := s.count(fact, ok)
	switch {
	case fact.Name != "":
		if !slices.Contains(tr.names[start], fact.Name) {
			s.wrongName++
			t.Logf("%#x: derived name %s, is %v", start, fact.Name, tr.names[start])
		}
		return
	case fact.Part != 0:
		of, found := symbols.Lookup(fact.Part, fact.Part, 0)
		if !found {
			root, _ := n.At(fact.Part)
			of.Name = root.Name
		}
		if !slices.Contains(tr.names[start], of.Name) {
			s.wrongPart++
			t.Logf("%#x: part of %s, is %v", start, of.Name, tr.names[start])
		}
		return
	case strings.HasPrefix(what, "has code of "):
		s.checkCode(t, tr, start, strings.TrimPrefix(what, "has code of "))
	}
	if truth := tr.files[start]; file != "" && truth != "" && !sameFile(file, truth) {
		s.wrongFile++
		t.Logf("%#x, %v: %s, is in %s", start, tr.names[start], fact.Note, truth)
	}
}

// checkCode compares the functions in a note with the functions that are inlined there.
func (s *shares) checkCode(t *testing.T, tr *truth, start uint64, list string) {
	t.Helper()
	if tr.inlined == nil {
		return
	}
	if tr.inlined[start] == nil {
		s.unchecked++ // the debugging information has no function that begins here
		return
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(list, ", …"), ", ") {
		if !slices.Contains(tr.inlined[start], name) && !slices.Contains(tr.names[start], name) {
			s.wrongCode++
			t.Logf("%#x, %v: has code of %s, inlined are %v", start, tr.names[start], name, tr.inlined[start])
		}
	}
}

// sameFile compares a source file with the compiler's input, which may be C made from it, or a file that includes
// that C.
func sameFile(file, compiled string) bool {
	if file == compiled {
		return true
	}
	stem, generated := strings.CutSuffix(file, ".y")
	if !generated {
		stem, generated = strings.CutSuffix(file, ".l")
	}
	including := map[string]string{
		"bootscanner.l": "bootparse.c", "guc-file.l": "guc.c", "jsonpath_scan.l": "jsonpath_gram.c",
		"repl_scanner.l": "repl_gram.c", "syncrep_scanner.l": "syncrep_gram.c",
	}
	return generated && stem+".c" == compiled || including[file] == compiled
}

func (s *shares) wrong() int { return s.wrongName + s.wrongPart + s.wrongCode + s.wrongFile }
