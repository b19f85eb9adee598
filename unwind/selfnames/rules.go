package selfnames

import (
	"slices"
	"unsafe"
)

// bytesString returns p as a string that shares p's memory.
func bytesString(p []byte) string { return unsafe.String(unsafe.SliceData(p), len(p)) }

// prove names functions by the table of the image's version, and returns the major version. It returns 0 if there is no
// table, if the image does not match the table, or if the functions of source files are not adjacent.
func (e *evidence) prove(tables *Tables) int {
	if tables == nil || !e.contiguous || !e.machine.verified {
		return 0
	}
	e.exports = make(map[string]bool, len(e.fns))
	for i := range e.fns {
		if name := e.fns[i].name; name != "" {
			e.exports[name] = true
		}
	}
	for _, name := range []string{"PostmasterPid"} { // a variable that only the server has
		if at, err := e.image.Defined(name); err == nil && at[name] != 0 {
			e.exports[name] = true
		}
	}
	major, module := e.version()
	if major == 0 {
		return 0
	}
	packed := tables.Read(major)
	if packed == nil {
		return 0
	}
	source, err := Unpack(packed)
	if err != nil {
		return 0
	}
	p := prover{evidence: e, source: newSourceOf(source, module), claims: make(map[claim][]int32)}
	if !p.compare() {
		return 0
	}
	p.locate()
	for i := range e.all {
		p.byReports(int32(i))
		p.byAddress(int32(i))
		p.byPointer(int32(i))
	}
	p.settle()
	return major
}

// claim identifies a function of the table: the index of its file, and its index in the file.
type claim struct{ file, function int }

// prover compares an image with a table, and names the functions that the rules identify.
type prover struct {
	*evidence
	source *sourceOf
	// files has, for each subject, the index of its file in the table; -1: unknown.
	files []int
	// claims contains, for each function of the table, the subjects that a rule has identified as this function.
	claims map[claim][]int32
}

// compare looks for contradictions between the image and the table. A contradiction is a function that reports errors
// with the name of a file, while the table does not have the function in this file. Names in such a file are not
// derived. If more than one in 50 reports is a contradiction, or there are no reports, compare returns false, and the
// table is not used.
func (p *prover) compare() bool {
	right, wrong := 0, 0
	for i := range p.all {
		s := &p.all[i]
		file := p.source.file(s.own)
		if s.mixed || file < 0 || p.source.Files[file].Generated || p.source.Files[file].Mixed {
			continue
		}
		for _, at := range s.reports {
			if _, known := p.source.function(file, p.labels[at]); known {
				right++
			} else {
				wrong++
				p.source.usable[file] = false
			}
		}
	}
	const tolerated = 50 // 2 %
	return right > 0 && wrong*tolerated <= right
}

// locate finds the file of each subject. The table has the files of exported functions. A function between two
// functions of the same file is in that file, too.
func (p *prover) locate() {
	for i := range p.all {
		s := &p.all[i]
		file := p.source.file(s.own)
		if s.own == "" && s.exported != "" {
			if at, ok := p.source.byName[s.exported]; ok {
				file = at
			}
		}
		if file >= 0 && !s.mixed {
			s.own = "src/" + p.source.Files[file].Path
		}
	}
	p.neighbours()
	p.files = make([]int, len(p.all))
	for i := range p.all {
		p.files[i] = -1
		if s := &p.all[i]; !s.mixed {
			p.files[i] = p.source.file(s.file)
		}
	}
}

// mayBeNamed reports whether a rule may give a subject a name. The subject must be a function without a symbol, with a
// known entry and completely decoded code, in a file of the table that does not contradict the image.
func (p *prover) mayBeNamed(i int32) bool {
	s := &p.all[i]
	return s.known() && s.whole && s.exported == "" && p.files[i] >= 0 && p.source.usable[p.files[i]]
}

// functions returns the indexes in the table of the functions whose names are at the addresses. ok is false if the
// table lacks one of these functions, if one of them is exported, or if one of their names is not mentioned by exactly
// one subject.
func (p *prover) functions(file int, at []uint64) (found []int, ok bool) {
	for _, addr := range at {
		name := p.labels[addr]
		i, known := p.source.function(file, name)
		if !known || p.exports[name] || p.owners[addr] != 1 {
			return nil, false
		}
		found = append(found, i)
	}
	return found, true
}

// byReports is rule N. The subject contains code of the functions with whose names it reports. So it is one of them, or
// a function that may contain all of them (see reachable). If only one function without a symbol is possible, and the
// subject reports with its name, the subject is this function.
func (p *prover) byReports(i int32) {
	s := &p.all[i]
	if len(s.reports) == 0 || !p.mayBeNamed(i) {
		return
	}
	file := p.files[i]
	mentioned, ok := p.functions(file, s.mentions)
	if !ok {
		return
	}
	reported, _ := p.functions(file, s.reports)
	fns, reach := p.source.Files[file].Functions, p.source.reachable(file)
	only := -1
	for x := range fns {
		if fns[x].Reports && !slices.Contains(mentioned, x) || !fns[x].Static && p.exports[fns[x].Name] {
			continue
		}
		if slices.ContainsFunc(reported, func(y int) bool { return y != x && !reach[x].has(y) }) {
			continue
		}
		if only >= 0 {
			return
		}
		only = x
	}
	if only >= 0 && fns[only].Static && slices.Contains(reported, only) {
		p.claim(i, file, only)
	}
}

// byAddress is rule K. If the source takes a function's address, the image has a copy of the function that is not
// inlined. If only one subject mentions the function's name, and the image takes the address of this subject, the
// subject is the copy.
func (p *prover) byAddress(i int32) {
	s := &p.all[i]
	if len(s.reports) == 0 || !p.mayBeNamed(i) || len(s.takers) == 0 && !s.inData {
		return
	}
	file := p.files[i]
	only := -1
	for _, addr := range s.mentions {
		x, known := p.source.function(file, p.labels[addr])
		if !known {
			return
		}
		fn := &p.source.Files[file].Functions[x]
		if !fn.Taken || !fn.Static || p.exports[fn.Name] || p.owners[addr] != 1 {
			continue
		}
		if only >= 0 || !slices.Contains(s.reports, addr) {
			return
		}
		only = x
	}
	if only >= 0 {
		p.claim(i, file, only)
	}
}

// byPointer is rule P. It applies if the code of an exported function has the address of just one function without a
// symbol, and the source of the exported function takes the address of just one static function. Both are then the same
// function.
func (p *prover) byPointer(i int32) {
	s := &p.all[i]
	file, known := p.source.byName[s.exported]
	if s.exported == "" || !known || file < 0 || !p.source.usable[file] || !s.whole {
		return
	}
	taken := int32(-1)
	for _, t := range s.takes {
		if p.all[t].exported != "" {
			continue
		}
		if taken >= 0 {
			return
		}
		taken = t
	}
	if taken < 0 || !p.all[taken].known() {
		return
	}
	fns, reach := p.source.Files[file].Functions, p.source.reachable(file)
	own, _ := p.source.function(file, s.exported)
	only := -1
	for x := range fns {
		if x != own && !reach[own].has(x) {
			continue
		}
		for _, to := range fns[x].Points {
			if !fns[to].Static || p.exports[fns[to].Name] || to == only {
				continue
			}
			if only >= 0 {
				return
			}
			only = to
		}
	}
	if only >= 0 && (p.files[taken] < 0 || p.files[taken] == file) {
		p.claim(taken, file, only)
	}
}

func (p *prover) claim(subject int32, file, function int) {
	c := claim{file, function}
	if !slices.Contains(p.claims[c], subject) {
		p.claims[c] = append(p.claims[c], subject)
	}
}

// settle names each subject that was identified as exactly one function, if no other subject was identified as this
// function.
func (p *prover) settle() {
	claimed := make(map[int32]int)
	for _, subjects := range p.claims {
		for _, s := range subjects {
			claimed[s]++
		}
	}
	for c, subjects := range p.claims {
		if len(subjects) == 1 && claimed[subjects[0]] == 1 {
			p.all[subjects[0]].name = p.source.Files[c.file].Functions[c.function].Name
		}
	}
}
