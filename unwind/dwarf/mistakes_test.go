package dwarf_test

import (
	"slices"
	"testing"
)

// mistakes are wrong answers derived from right ones. Each returns nil if it is not possible for an answer.
var mistakes = []struct {
	name string
	make func(c chain) chain
}{
	{"nothing known", func(chain) chain { return nil }},
	{"wrong line of the innermost call", func(c chain) chain { c[0].line++; return c }},
	{"wrong file of the innermost call", func(c chain) chain { c[0].file = "/wrong.c"; return c }},
	{"wrong name of the innermost call", func(c chain) chain { c[0].function = "wrong"; return c }},
	{"wrong name of the function", func(c chain) chain { c[len(c)-1].function = "wrong"; return c }},
	{"wrong line of the outermost call", func(c chain) chain { c[len(c)-1].line++; return c }},
	{"wrong file of the outermost call", func(c chain) chain { c[len(c)-1].file = "/wrong.c"; return c }},
	{"inlined call left out", func(c chain) chain { return c[1:] }},
	{"function left out", func(c chain) chain { return c[:len(c)-1] }},
	{"inlined call invented", func(c chain) chain { return append(chain{c[0]}, c...) }},
	{"only the line", func(c chain) chain { return chain{{"", c[0].file, c[0].line}} }},
}

// makeMistakes makes at most n mistakes in answers that a reference confirms. At least one of the references must
// then contradict, and no class of differences may excuse the mistake. If the references contradict each other, a
// mistake may equal one of them. It returns the number of mistakes made and detected, unless the test has failed.
func (a *answers) makeMistakes(t *testing.T, n int) (total int) {
	t.Helper()
	if len(a.theirs) < len(tools) || a.judge == nil {
		t.Log("one of the tools is not installed: not tried with mistakes")
		return 0
	}
	step := max(len(a.addrs)/n, 1)
	for _, m := range mistakes {
		made, undecided := 0, 0
		for i := 0; i < len(a.addrs); i += step {
			right := a.ours[i]
			if len(right) == 0 || right[0].file == "" || !a.confirmed(i) {
				continue // an address with only a symbol looks the same as an unknown address
			}
			a.ours[i] = m.make(slices.Clone(right))
			if !slices.Equal(a.ours[i], right) {
				made++
				switch {
				case a.confirmed(i): // by the other reference
					undecided++
				case !a.contradicted(i):
					c := a.comparison(binutils, i)
					t.Errorf("%s: %#x (%v): %v passes as %v", m.name, a.addrs[i], c.symbols, a.ours[i], right)
				}
			}
			a.ours[i] = right
		}
		t.Logf("    %6d times %s: noticed, but for %d that the other reference confirms", made, m.name, undecided)
		total += made - undecided
	}
	return total
}

// confirmed reports whether a reference says the same of the address i, word for word.
func (a *answers) confirmed(i int) bool {
	for _, said := range a.theirs {
		if slices.Equal(said[i], a.ours[i]) {
			return true
		}
	}
	return false
}

// contradicted reports whether a reference's answer for address i has no explanation.
func (a *answers) contradicted(i int) bool {
	for tool := range a.theirs {
		c := a.comparison(tool, i)
		if _, ok := c.explained(); !ok {
			return true
		}
	}
	return false
}
