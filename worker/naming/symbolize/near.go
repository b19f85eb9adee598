package symbolize

import (
	"cmp"
	"sort"
	"strings"

	"pg_stat_backtrace/unwind/elfimage"
)

// nearest bounds the names that Near returns.
const nearest = 5

// Near returns at most five names of functions that differ from a name in few letters, the nearest first. Upper and
// lower case, and suffixes of the compiler after a dot, make no difference.
func (m *Image) Near(name string) []string {
	type candidate struct {
		name string
		far  int
	}
	var near []candidate
	seen := make(map[string]bool)
	wanted := strings.ToLower(name)
	most := len(wanted) / 4
	consider := func(other string) {
		plain, _, _ := strings.Cut(other, ".")
		if difference := len(plain) - len(wanted); difference > most || -difference > most || seen[plain] {
			return
		}
		if far := editDistance(wanted, strings.ToLower(plain), most); far <= most {
			plain = strings.Clone(plain)
			seen[plain] = true
			near = append(near, candidate{plain, far})
		}
	}
	m.eachSymbol(func(_ elfimage.Symbol, plain string) { consider(plain) })
	m.eachDerived(func(derived string, _, _ uint64) { consider(derived) })
	sort.Slice(near, func(i, j int) bool {
		a, b := near[i], near[j]
		return cmp.Or(cmp.Compare(a.far, b.far), cmp.Compare(a.name, b.name)) < 0
	})
	names := make([]string, 0, nearest)
	for _, c := range near[:min(len(near), nearest)] {
		names = append(names, c.name)
	}
	return names
}

// editDistance returns how many times a letter must be inserted, removed, replaced or exchanged with the next letter to
// make the text b from the text a. If this number is more than the parameter most, it returns some number above most.
func editDistance(a, b string, most int) int {
	const longest = 128
	if len(a) > longest || len(b) > longest {
		return most + 1
	}
	var rows [3][longest + 1]int
	before, last, row := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		least := row[0]
		for j := range len(b) {
			replaced := last[j]
			if a[i] != b[j] {
				replaced++
			}
			row[j+1] = min(replaced, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
			least = min(least, row[j+1])
		}
		if least > most {
			return most + 1
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
