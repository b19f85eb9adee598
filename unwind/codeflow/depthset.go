package codeflow

import "slices"

// depthSet is the set of distances that are possible at an instruction. The zero value means that no path reaches the
// instruction.
type depthSet struct {
	values  [maxValues]int64
	n       int
	unknown bool // any distance is possible
}

func justDepth(v int64) depthSet {
	s := depthSet{n: 1}
	s.values[0] = v
	return s
}

func (s *depthSet) reached() bool { return s.n > 0 || s.unknown }

// list returns the distances in ascending order.
func (s *depthSet) list() []int64 {
	values := slices.Clone(s.values[:s.n])
	slices.Sort(values)
	return values
}

// add adds the distances of o. It reports whether s has changed.
func (s *depthSet) add(o depthSet) bool {
	if s.unknown {
		return false
	}
	if o.unknown {
		*s = depthSet{unknown: true}
		return true
	}
	grown := false
	for _, v := range o.values[:o.n] {
		if slices.Contains(s.values[:s.n], v) {
			continue
		}
		if s.n == maxValues {
			*s = depthSet{unknown: true}
			return true
		}
		s.values[s.n] = v
		s.n++
		grown = true
	}
	return grown
}

// shifted returns the set with the parameter by added to every distance.
func (s *depthSet) shifted(by int64) depthSet {
	moved := *s
	for i := range moved.values[:moved.n] {
		moved.values[i] += by
	}
	return moved
}

// atLeast returns the set without the distances that are smaller than the parameter least. If any distance is possible
// (unknown), the result is empty.
func (s *depthSet) atLeast(least int64) depthSet {
	var kept depthSet
	for _, v := range s.values[:s.n] {
		if v >= least {
			kept.values[kept.n] = v
			kept.n++
		}
	}
	return kept
}
