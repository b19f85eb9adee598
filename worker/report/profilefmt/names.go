package profilefmt

import (
	"errors"
	"unicode/utf8"

	"pg_stat_backtrace/unwind/budget"
)

const (
	// maxName is the greatest number of bytes of a name or a label that are printed, before characters are escaped. An escaped
	// text has at most four times as many bytes.
	maxName = 4096
	// cutMark replaces the end of a longer name.
	cutMark = "..."
	// maxNames bounds the bytes of all different names together. The names of a file within the limits of Read exceed it only if
	// most of their characters are escaped.
	maxNames = 256 << 20
)

var errNames = errors.New("names in the profile are too long, all together, for a format other than pprof")

// cut returns a text of at most maxName bytes. It cuts only between characters.
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

// names keeps each different text once, and bounds the size of all. In a small file, many functions can have the same long name.
type names struct {
	memory *budget.Budget
	known  map[string]string
	size   int
	err    error // not nil: a text was left out, so the profile must be refused
}

// keep keeps a text, and returns the kept copy. If a limit is exceeded, it sets n.err and returns "".
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

// charge charges the budget for bytes other than names, which the caller keeps. It sets n.err if the budget is
// exceeded.
func (n *names) charge(bytes int) {
	if n.err == nil {
		n.err = n.memory.Charge(int64(bytes), "functions")
	}
}
