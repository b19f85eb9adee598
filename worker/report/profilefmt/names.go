package profilefmt

import (
	"errors"
	"unicode/utf8"

	"pg_stat_backtrace/unwind/budget"
)

const (
	// maxName is the number of bytes of a name or a label that are printed, before characters are escaped. An escaped
	// text has four times as many at most.
	maxName = 4096
	// cutMark stands for the end of a longer name.
	cutMark = "..."
	// maxNames bounds the bytes of all different names. Names in a file within the limits of Read have more only if most
	// of their characters need an escape.
	maxNames = 256 << 20
)

var errNames = errors.New("names in the profile are too long, all together, for a format other than pprof")

// cut returns a text of at most maxName bytes. It does not cut through a character.
func cut(text string) string {
	if len(text) <= maxName {
		return text
	}
	end := maxName - len(cutMark)
	for range utf8.UTFMax - 1 {
		if utf8.RuneStart(text[end]) {
			break
		}
		end--
	}
	return text[:end] + cutMark
}

// names keeps each different text once, and bounds their size. Many functions of a small file can have one long name.
type names struct {
	memory *budget.Budget
	known  map[string]string
	size   int
	err    error // a text was left out: the profile has to be refused
}

// keep returns the text that is kept for an equal one; "" if the names are full.
func (n *names) keep(text string) string {
	if kept, ok := n.known[text]; ok {
		return kept
	}
	if n.err == nil && n.size+len(text) > maxNames {
		n.err = errNames
	}
	if n.err == nil {
		n.err = n.memory.Charge(int64(len(text))+textBytes, "names")
	}
	if n.err != nil {
		return ""
	}
	if n.known == nil {
		n.known = make(map[string]string)
	}
	n.known[text] = text
	n.size += len(text)
	return text
}

// charge charges the bytes kept beside the names. Its error comes as one of keep.
func (n *names) charge(bytes int) {
	if n.err == nil {
		n.err = n.memory.Charge(int64(bytes), "functions")
	}
}
