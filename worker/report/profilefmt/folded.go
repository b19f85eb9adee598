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

// writeFolded prints a line for each stack, in alphabetical order. The line has the values of the labels in o.Root and
// the frames from the outermost to the innermost, separated by semicolons, and after a space the sum of the samples'
// values. The name of an inlined call ends in "_[i]". Code without a symbol has its module in brackets as name. Stacks
// whose sum is 0 have no line.
func writeFolded(w *bufio.Writer, p *profile.Profile, index int, o Options) error {
	sums, err := foldStacks(p, index, o, foldedWords)
	if err != nil {
		return err
	}
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

// wording defines how names are written. name removes semicolons, since these separate frames.
type wording struct {
	name    func(name string) string
	inlined string // is appended to the name of an inlined call
}

//nolint:gochecknoglobals // read only
var (
	// foldedWords writes names without spaces, since flame graph programs need each name as one word.
	foldedWords = wording{foldedName, "_[i]"}
	plainWords  = wording{func(name string) string { return strings.ReplaceAll(shown(name), ";", ",") }, " [inlined]"}
)

// foldStacks adds up the values of one sample type by stack. Each key of the result is a stack as in a folded line, see
// folder.stack.
func foldStacks(p *profile.Profile, index int, o Options, words wording) (map[string]int64, error) {
	sums := make(map[string]int64)
	f := folder{
		words: words, root: o.Root, frames: make(map[*profile.Location][]string), names: names{memory: o.Memory},
	}
	size := 0
	for _, s := range p.Sample {
		v := s.Value[index]
		if v == 0 {
			continue
		}
		stack := f.stack(s)
		if f.names.err != nil {
			return nil, f.names.err
		}
		old, ok := sums[string(stack)]
		if !ok {
			if size += len(stack); size > maxText {
				return nil, errTooLarge
			}
			if err := o.Memory.Charge(int64(len(stack))+textBytes, "stacks"); err != nil {
				return nil, err
			}
		}
		sums[string(stack)] = plus(old, v)
	}
	return sums, nil
}

// A folder writes a stack as one line of text.
type folder struct {
	words  wording
	root   []string
	frames map[*profile.Location][]string // names of the frames, innermost first
	names  names
	list   []string
	buf    []byte
}

// stack returns the values of the labels in f.root and the frames of a sample as text: outermost first, separated by
// semicolons. The next call overwrites the result. Its length is at most about 4 * maxDepth * maxName.
func (f *folder) stack(s *profile.Sample) []byte {
	f.list = f.list[:0]
	for _, loc := range s.Location {
		f.list = append(f.list, f.location(loc)...)
		if len(f.list) > maxDepth {
			f.list = append(f.list[:maxDepth], cutStack)
			break
		}
	}
	f.buf = f.buf[:0]
	for _, label := range f.root {
		f.add(f.words.name(cmp.Or(labelValue(s, label), "[no "+label+"]")))
	}
	for _, name := range slices.Backward(f.list) {
		f.add(name)
	}
	if len(f.buf) == 0 {
		f.add("[no_stack]")
	}
	return f.buf
}

func (f *folder) add(name string) {
	if len(f.buf) > 0 {
		f.buf = append(f.buf, ';')
	}
	f.buf = append(f.buf, name...)
}

// location returns the names of the frames of a location.
func (f *folder) location(loc *profile.Location) []string {
	list, ok := f.frames[loc]
	if !ok {
		for _, frame := range locationFrames(nil, loc) {
			name := f.words.name(frame.merged())
			if frame.inlined {
				name += f.words.inlined
			}
			list = append(list, f.names.keep(name))
		}
		f.names.charge(textBytes + frameBytes*len(list))
		f.frames[loc] = list
	}
	return list
}

// foldedName returns a name as one word without semicolons.
func foldedName(name string) string { return strings.ReplaceAll(word(name), ";", ":") }

// labelValue returns the value of a label of a sample as text, cut to maxName bytes; "" if the sample does not have the label.
// Several values are joined by commas.
func labelValue(s *profile.Sample, key string) string {
	if values := s.Label[key]; len(values) > 0 {
		return join(len(values), func(i int) string { return values[i] })
	}
	numbers, units := s.NumLabel[key], s.NumUnit[key]
	return join(len(numbers), func(i int) string {
		text := strconv.FormatInt(numbers[i], 10)
		if i < len(units) && units[i] != "" {
			text += " " + units[i]
		}
		return text
	})
}

// join joins n texts by commas, and cuts the result to maxName bytes.
func join(n int, text func(int) string) string {
	if n == 1 {
		return cut(text(0))
	}
	var list []byte
	for i := range n {
		if i > 0 {
			list = append(list, ',')
		}
		list = append(list, cut(text(i))...)
		if len(list) > maxName {
			break
		}
	}
	return cut(string(list))
}
