package profilefmt

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/google/pprof/profile"
)

// labelSets numbers the different sets of labels of samples.
type labelSets struct {
	keys  []string
	notes []string // labels that are left out, for a reader
	sets  []int    // for each set, the number of a text for each key

	text  *stringTable
	bySet map[string]int
}

// maxLabels is the number of labels of a page.
const maxLabels = 32

// newLabelSets finds the labels of a profile, except labels with too many different values.
func newLabelSets(p *profile.Profile, text *stringTable) *labelSets {
	l := &labelSets{sets: []int{}, text: text, bySet: make(map[string]int)}
	values := make(map[string]map[string]bool)
	note := func(key string, s *profile.Sample) {
		if values[key] == nil {
			values[key] = make(map[string]bool)
		}
		if len(values[key]) <= maxLabelValues {
			values[key][labelValue(s, key)] = true
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
		l.notes = append(l.notes, fmt.Sprintf("%d labels are left out", left))
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
	values := make([]string, len(l.keys))
	for i, key := range l.keys {
		values[i] = shown(labelValue(s, key))
	}
	joined := strings.Join(values, "\x00") // shown leaves no such byte in a value
	n, ok := l.bySet[joined]
	if !ok {
		n = len(l.bySet)
		l.bySet[joined] = n
		for _, value := range values {
			l.sets = append(l.sets, l.text.number(value))
		}
	}
	return n
}
