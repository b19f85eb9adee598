package profilefmt

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/unwind/budget"
	"pg_stat_backtrace/worker/report/units"
)

// labelSets numbers the different sets of labels of samples.
type labelSets struct {
	keys  []string
	notes []string // notes on labels that are left out
	sets  []int    // for each set: the number of a text in the stringTable for each key

	text  *stringTable
	names names // keeps the values of labels, as in the profile and as shown
	bySet map[string]int
	key   []byte
}

// maxLabels is the greatest number of labels of a page.
const maxLabels = 32

// newLabelSets finds the labels of a profile, except labels with too many different values.
func newLabelSets(p *profile.Profile, text *stringTable, memory *budget.Budget) *labelSets {
	l := &labelSets{sets: []int{}, text: text, bySet: make(map[string]int), names: names{memory: memory}}
	values := make(map[string]map[string]bool)
	note := func(key string, s *profile.Sample) {
		if values[key] == nil {
			l.names.charge(labelsBytes + labelBytes)
			values[key] = make(map[string]bool)
		}
		if value := labelValue(s, key); l.names.err == nil && len(values[key]) <= maxLabelValues && !values[key][value] {
			l.names.charge(textBytes)
			values[key][l.names.keep(value)] = true
		}
	}
	for _, s := range p.Sample {
		for key := range s.Label {
			note(key, s)
		}
		for key := range s.NumLabel {
			note(key, s)
		}
	}
	for key, distinct := range values {
		if len(distinct) > maxLabelValues {
			l.names.charge(len(key) + textBytes)
			l.notes = append(l.notes,
				fmt.Sprintf("label %s has more than %d values and is left out", shown(key), maxLabelValues))
		} else {
			l.keys = append(l.keys, key)
		}
	}
	slices.Sort(l.notes)
	slices.SortFunc(l.keys, func(a, b string) int {
		return cmp.Or(cmp.Compare(labelRank(a), labelRank(b)), cmp.Compare(a, b))
	})
	if left := len(l.keys) - maxLabels; left > 0 {
		l.keys = l.keys[:maxLabels]
		l.notes = append(l.notes, units.Plural(left, "%d {label is|labels are} left out"))
	}
	return l
}

func labelRank(key string) int {
	if i := slices.Index(labelOrder, key); i >= 0 {
		return i
	}
	return len(labelOrder)
}

func (l *labelSets) shownKeys() []string {
	keys := make([]string, len(l.keys))
	for i, key := range l.keys {
		keys[i] = shown(key)
	}
	return keys
}

// number returns the number of the sample's set of labels.
func (l *labelSets) number(s *profile.Sample) int {
	values := make([]int, len(l.keys)) // numbers in the stringTable
	l.key = l.key[:0]
	for i, key := range l.keys {
		values[i] = l.text.number(l.names.keep(shown(labelValue(s, key))))
		l.key = binary.AppendUvarint(l.key, uint64(values[i]))
	}
	n, ok := l.bySet[string(l.key)]
	if !ok {
		n = len(l.bySet)
		l.names.charge(len(l.key) + textBytes + 16*len(values))
		l.bySet[string(l.key)] = n
		l.sets = append(l.sets, values...)
	}
	return n
}
