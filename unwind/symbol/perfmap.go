package symbol

import (
	"cmp"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// maxPerfEntries bounds the functions of a PerfMap.
const maxPerfEntries = 1 << 19

// PerfMap is a map of functions that a program has compiled at run time, in the format of perf (Linux:
// tools/perf/Documentation/jit-interface.txt). Each line is "START SIZE NAME", with hexadecimal numbers.
type PerfMap struct {
	functions []perfFunction // by start
}

type perfFunction struct {
	start, end uint64
	before     uint64 // highest end of the functions that begin earlier
	name       string
}

// ParsePerfMap parses the text of a perf-PID.map file. It ignores malformed lines. Programs only append lines: if
// functions begin at the same address, the later line is used.
func ParsePerfMap(text string) *PerfMap {
	var all []perfFunction
	for line := range strings.Lines(text) {
		if len(all) == maxPerfEntries {
			break
		}
		line, whole := strings.CutSuffix(line, "\n") // the program may not have written all of the last line
		start, rest, ok1 := strings.Cut(line, " ")
		size, name, ok2 := strings.Cut(rest, " ")
		from, err1 := strconv.ParseUint(strings.TrimPrefix(start, "0x"), 16, 64)
		n, err2 := strconv.ParseUint(strings.TrimPrefix(size, "0x"), 16, 64)
		if whole && ok1 && ok2 && err1 == nil && err2 == nil && name != "" && n > 0 && from+n > from {
			all = append(all, perfFunction{start: from, end: from + n, name: name})
		}
	}
	slices.Reverse(all)
	slices.SortStableFunc(all, func(a, b perfFunction) int { return cmp.Compare(a.start, b.start) })
	all = slices.CompactFunc(all, func(a, b perfFunction) bool { return a.start == b.start }) // keeps the later line
	for i := 1; i < len(all); i++ {
		all[i].before = max(all[i-1].before, all[i-1].end)
	}
	return &PerfMap{functions: all}
}

// Find returns the name and the start of the function that contains an address. If two functions in the map contain the
// address, Find returns none: the program has freed one of them, and the map does not say which.
func (m *PerfMap) Find(addr uint64) (name string, start uint64, ok bool) {
	i := sort.Search(len(m.functions), func(i int) bool { return m.functions[i].start > addr }) - 1
	if i < 0 || addr >= m.functions[i].end || addr < m.functions[i].before {
		return "", 0, false
	}
	return m.functions[i].name, m.functions[i].start, true
}
