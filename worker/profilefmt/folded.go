package profilefmt

import (
	"bufio"
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/pprof/profile"
)

// writeFolded prints a line for each stack, in alphabetical order: the values of the root labels and the frames from
// the outermost to the innermost, separated by semicolons, and after a space the sum of the values. A call that was
// inlined ends in "_[i]". A module in brackets stands for code without a symbol. Stacks whose sum is 0 have no line.
func writeFolded(w *bufio.Writer, p *profile.Profile, index int, o Options) error {
	sums := foldStacks(p, index, o.Root)
	for _, stack := range slices.Sorted(maps.Keys(sums)) {
		if sums[stack] == 0 {
			continue
		}
		_, _ = w.WriteString(stack) // the writer keeps an error until Flush
		_ = w.WriteByte(' ')
		_, _ = w.WriteString(strconv.FormatInt(sums[stack], 10))
		_ = w.WriteByte('\n')
	}
	return nil
}

// foldStacks adds up one value of the samples by stack.
func foldStacks(p *profile.Profile, index int, root []string) map[string]int64 {
	sums := make(map[string]int64)
	for _, s := range p.Sample {
		if v := s.Value[index]; v != 0 {
			stack := foldStack(s, root)
			sums[stack] = plus(sums[stack], v)
		}
	}
	return sums
}

// foldStack writes the stack of a sample on one line.
func foldStack(s *profile.Sample, root []string) string {
	var b strings.Builder
	for _, label := range root {
		appendFolded(&b, cmp.Or(labelValue(s, label), "["+label+" unknown]"))
	}
	list, left := frames(s)
	if left > 0 {
		f := leftOut(left)
		appendFolded(&b, f.name)
	}
	for i := range slices.Backward(list) {
		appendFolded(&b, list[i].merged())
		if list[i].inlined {
			b.WriteString("_[i]")
		}
	}
	if b.Len() == 0 {
		return "[no stack]"
	}
	return b.String()
}

// appendFolded appends a frame, separated from the one before. The name itself separates nothing.
func appendFolded(b *strings.Builder, name string) {
	if b.Len() > 0 {
		b.WriteByte(';')
	}
	b.WriteString(strings.ReplaceAll(word(name), ";", ":"))
}

// labelValue returns a label of a sample as text; "" if the sample does not have it. Several values are joined.
func labelValue(s *profile.Sample, key string) string {
	if values := s.Label[key]; len(values) > 0 {
		return strings.Join(values, ",")
	}
	numbers := s.NumLabel[key]
	words := make([]string, len(numbers))
	for i, n := range numbers {
		words[i] = strconv.FormatInt(n, 10)
		if units := s.NumUnit[key]; i < len(units) && units[i] != "" {
			words[i] += " " + units[i]
		}
	}
	return strings.Join(words, ",")
}
