package selfnames

import (
	"cmp"
	"path"
	"slices"
	"strings"
)

// subject is a group of parts that form one function of the image, with the evidence from its code.
type subject struct {
	group
	// exported is the name of the subject's symbol; empty: it has none.
	exported string
	// The list reports has the addresses of the function names with which the subject's code reports errors. Inlined
	// functions report with their own names. The list mentions also has the function names to which the subject only
	// has a pointer. Names of functions in headers are left out.
	reports, mentions []uint64
	// The field own is the file with which the subject reports. The field file is the same file. If the subject does
	// not report, file is the file that both neighbours have in common.
	own, file string
	mixed     bool    // the subject reports with several files
	takers    []int32 // the subjects that have this subject's address in their code
	takes     []int32 // the subjects whose addresses this subject has in its code
	inData    bool    // the image's data has the subject's address
	name      string  // derived by a rule; empty: no rule applies
}

// known reports whether the part with the subject's entry is known. The subject is then one whole function, or a part
// of it that includes the entry.
func (s *subject) known() bool { return s.root >= 0 }

// evidence contains the facts that the code of an image shows about its functions.
type evidence struct {
	*code
	all    []subject // the subjects of all groups
	of     []int32   // index in all of each function's subject
	labels map[uint64]string
	// owners is the number of subjects that mention a name, by the name's address.
	owners map[uint64]int
	// contiguous is set if the functions of each source file are adjacent. This is so unless the linker has reordered
	// functions.
	contiguous bool
	exports    map[string]bool // names of exported functions, set by prove
}

// gather makes a subject of each group and collects the evidence from its code.
func (c *code) gather(groups []group) *evidence {
	e := &evidence{
		code: c, of: make([]int32, len(c.fns)), labels: make(map[uint64]string), owners: make(map[uint64]int),
	}
	e.all = make([]subject, 0, len(groups))
	at := make([]int32, len(c.fns)) // index of the group plus one, by the group's first part
	for i := range groups {
		at[groups[i].first()] = int32(i) + 1
	}
	for _, i := range at {
		if i == 0 {
			continue
		}
		g := groups[i-1]
		s := subject{group: g}
		if s.root >= 0 {
			s.exported = c.fns[s.root].name
		}
		for _, p := range g.parts {
			e.of[p] = int32(len(e.all))
		}
		e.all = append(e.all, s)
	}
	e.reported()
	e.referred()
	for _, fn := range c.data {
		e.all[e.of[fn]].inData = true
	}
	for i := range e.all {
		s := &e.all[i]
		s.takers, s.takes = distinct(s.takers), distinct(s.takes)
		s.reports, s.mentions = distinct(s.reports), distinct(s.mentions)
		for _, name := range s.mentions {
			e.owners[name]++
		}
	}
	e.neighbours()
	return e
}

// first returns the part that determines the group's place in the order of subjects.
func (g *group) first() int32 {
	if g.root >= 0 {
		return g.root
	}
	return g.parts[0]
}

func distinct[T cmp.Ordered](s []T) []T {
	slices.Sort(s)
	return slices.Compact(s)
}

// reported collects, for each subject, the function names and the file names in its calls of reporters.
func (e *evidence) reported() {
	for _, at := range e.sites {
		s := &e.all[e.of[at.fn]]
		file := e.sourceFile(at.file)
		if strings.HasSuffix(file, ".h") {
			e.labels[at.name] = "" // such functions are inlined into functions of many files
			continue
		}
		if _, known := e.labels[at.name]; !known {
			e.labels[at.name] = e.identifier(at.name)
		}
		s.reports = append(s.reports, at.name)
		switch {
		case file == "":
		case s.own == "":
			s.own = file
		case s.own != file:
			s.mixed = true
		}
	}
	for i := range e.all {
		s := &e.all[i]
		s.reports = slices.DeleteFunc(s.reports, func(name uint64) bool { return e.labels[name] == "" })
		if len(s.reports) > 0 {
			s.mentions = slices.Clone(s.reports)
		}
	}
}

// referred collects, for each subject, the pointers in its code to function names that some function reports, and to
// other functions.
func (e *evidence) referred() {
	low, high := ^uint64(0), uint64(0)
	for addr := range e.labels {
		low, high = min(low, addr), max(high, addr)
	}
	for _, r := range e.refs {
		from := e.of[r.fn]
		if r.to >= low && r.to <= high && e.labels[r.to] != "" {
			if !r.base {
				e.all[from].mentions = append(e.all[from].mentions, r.to)
			}
			continue
		}
		fn := e.starting(r.to)
		if fn < 0 {
			continue
		}
		if to := e.of[fn]; to != from {
			e.all[to].takers = append(e.all[to].takers, from)
			e.all[from].takes = append(e.all[from].takes, to)
		}
	}
}

// neighbours finds the files of functions that lie between two functions of the same file. It finds none if the linker
// has mixed the functions of different files, or if functions contain code of several files.
func (e *evidence) neighbours() {
	runs, mixed, owned := make(map[string]int), 0, 0
	last := ""
	for i := range e.all {
		s := &e.all[i]
		if s.mixed && !included(s.own) {
			mixed++
		}
		if s.own == "" || s.mixed || !s.known() {
			continue
		}
		owned++
		if s.own != last {
			runs[s.own]++
			last = s.own
		}
	}
	split := 0
	for _, n := range runs {
		// The linker puts cold functions, start-up code and the other functions into three places. So a file may have
		// three runs of adjacent functions.
		if const3 := 3; n > const3 {
			split++
		}
	}
	const share = 50
	if e.contiguous = mixed*share <= owned && split*share <= len(runs); !e.contiguous {
		return
	}
	next := make([]string, len(e.all))
	file := ""
	for i := len(e.all) - 1; i >= 0; i-- {
		next[i] = file
		if s := &e.all[i]; s.own != "" && !s.mixed && s.known() {
			file = s.own
		}
	}
	file = ""
	for i := range e.all {
		s := &e.all[i]
		switch {
		case s.own != "" && !s.mixed:
			s.file = s.own
		case s.own == "" && s.known() && file == next[i]:
			s.file = file
		}
		if s.own != "" && !s.mixed && s.known() {
			file = s.own
		}
	}
}

// included reports whether a source file may be included by another source file.
func included(file string) bool {
	_, ok := includers[path.Base(file)]
	return ok || !strings.HasSuffix(file, ".c")
}
