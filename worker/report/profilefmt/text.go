package profilefmt

import (
	"bufio"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/worker/report/render"
)

const defaultTop = 20

// writeText prints the totals of the profile, totals by function, by line of a procedural language and by query, and a tree of the
// stacks with the greatest values, outermost frame first, in which each common caller stands once.
func writeText(w *bufio.Writer, p *profile.Profile, index int, o Options) error {
	for _, line := range append([]string{o.Title, o.Subtitle}, o.Notes...) {
		if line != "" {
			_, _ = fmt.Fprintln(w, shown(line)) // the writer keeps an error until Flush
		}
	}
	_, _ = fmt.Fprintln(w, totals(p))
	sums, err := foldStacks(p, index, o, plainWords)
	if err != nil {
		return err
	}
	t := textWriter{w: w, unit: p.SampleType[index], top: cmp.Or(max(o.Top, 0), defaultTop), width: len("2.50 min") + 1}
	if sizes[t.unit.Unit] > 0 {
		t.width = len("10239 bytes")
	}
	for _, v := range sums {
		t.total = plus(t.total, v)
	}
	functions, lines, err := sumFrames(p, index, o)
	if err != nil {
		return err
	}
	t.table(strings.ToUpper(cmp.Or(o.Noun, "function")), functions)
	t.table("LINE", lines)
	if err := t.queries(p, index, o); err != nil {
		return err
	}
	return t.tree(sums, o)
}

// textWriter prints the parts of a text.
type textWriter struct {
	w     *bufio.Writer
	unit  *profile.ValueType
	total int64
	top   int
	width int // of the column of a value, in characters
}

// frameSums has two sums of values, for a function or for a line of a procedural language. self is the sum of the
// samples in which it is the innermost frame. all is the sum of the samples that have it anywhere on the stack; a
// sample counts once, even if the function is recursive.
type frameSums struct {
	self, all int64
	last      int // the number of the last sample that was added to all
}

type plLine struct {
	name string
	line int64
}

// procedural are the prefixes of names of functions in procedural languages.
//
//nolint:gochecknoglobals // read only
var procedural = []string{"plpgsql:", "sql:", "plperl:", "plpython:"}

// sumFrames adds up the values of one sample type by function, and by line of a procedural language.
func sumFrames(p *profile.Profile, index int, o Options) (functions, lines map[string]*frameSums, err error) {
	f := folder{words: plainWords, frames: make(map[*profile.Location][]string), names: names{memory: o.Memory}}
	functions, byLine := make(map[string]*frameSums), make(map[plLine]*frameSums)
	for number, s := range p.Sample {
		v, depth, inLine := s.Value[index], 0, false
		if v == 0 {
			continue
		}
		for _, loc := range s.Location {
			for _, name := range f.location(loc) {
				add(&f.names, functions, name, v, number+1, depth == 0)
				depth++
			}
			if len(loc.Line) == 1 && loc.Line[0].Line > 0 && isProcedural(loc.Line[0].Function.Name) {
				name := f.location(loc)[0]
				add(&f.names, byLine, plLine{name, loc.Line[0].Line}, v, number+1, !inLine)
				inLine = true
			}
			if depth > maxDepth {
				break
			}
		}
		if f.names.err != nil {
			return nil, nil, f.names.err
		}
	}
	lines = make(map[string]*frameSums, len(byLine))
	for at, sums := range byLine {
		lines[fmt.Sprintf("%s line %d", at.name, at.line)] = sums
	}
	return functions, lines, nil
}

func isProcedural(name string) bool {
	return slices.ContainsFunc(procedural, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// add adds the value v of a sample to the sums of a frame on the sample's stack.
func add[K comparable](n *names, sums map[K]*frameSums, key K, v int64, sample int, innermost bool) {
	x := sums[key]
	if x == nil {
		n.charge(textBytes)
		x = &frameSums{}
		sums[key] = x
	}
	if innermost {
		x.self = plus(x.self, v)
	}
	if x.last != sample {
		x.last, x.all = sample, plus(x.all, v)
	}
}

// table prints the frames with the greatest self values. Frames with a self value of 0 come last, ordered by their all values.
func (t *textWriter) table(heading string, sums map[string]*frameSums) {
	if len(sums) == 0 {
		return
	}
	list := slices.SortedFunc(maps.Keys(sums), func(a, b string) int {
		x, y := sums[a], sums[b]
		return cmp.Or(cmp.Compare(magnitude(y.self), magnitude(x.self)), cmp.Compare(magnitude(y.all), magnitude(x.all)),
			cmp.Compare(a, b))
	})
	_, _ = fmt.Fprintf(t.w, "\n%*s %8s  %*s %8s  %s\n", t.width, "SELF", "", t.width, "TOTAL", "", heading)
	for _, name := range list[:min(t.top, len(list))] {
		x := sums[name]
		_, _ = fmt.Fprintf(t.w, "%s  %s  %s\n", t.figures(x.self), t.figures(x.all), name)
	}
	t.more(len(list), strings.ToLower(heading))
}

// Labels of a sample with the id and the text of the query.
const (
	labelQueryID = "query_id"
	labelQuery   = "query"
)

// querySum has the id and the text of a query, and the sum of the values of its samples.
type querySum struct {
	id, text string
	value    int64
}

// queries prints the queries with the greatest values, with their texts. It prints nothing if no sample has the text of its query.
func (t *textWriter) queries(p *profile.Profile, index int, o Options) error {
	sums, texts := make(map[string]*querySum), false
	for _, s := range p.Sample {
		id, v := labelValue(s, labelQueryID), s.Value[index]
		if id == "" || v == 0 {
			continue
		}
		sum := sums[id]
		if sum == nil {
			if err := o.Memory.Charge(int64(len(id))+textBytes, "queries"); err != nil {
				return err
			}
			sum = &querySum{id: id}
			sums[id] = sum
		}
		sum.value, sum.text = plus(sum.value, v), cmp.Or(sum.text, labelValue(s, labelQuery))
		texts = texts || sum.text != ""
	}
	if !texts {
		return nil
	}
	list := slices.SortedFunc(maps.Values(sums), func(a, b *querySum) int {
		return cmp.Or(cmp.Compare(magnitude(b.value), magnitude(a.value)), cmp.Compare(a.id, b.id))
	})
	_, _ = fmt.Fprintf(t.w, "\n%*s %8s  %20s  %s\n", t.width, "TOTAL", "", "QUERY ID", "QUERY")
	for _, q := range list[:min(t.top, len(list))] {
		line := fmt.Sprintf("%s  %20s  %s", t.figures(q.value), shown(q.id), render.OneLine(q.text))
		_, _ = fmt.Fprintln(t.w, strings.TrimRight(line, " "))
	}
	if left := len(list) - t.top; left > 0 {
		_, _ = fmt.Fprintf(t.w, "queries left out: %d\n", left)
	}
	return nil
}

// more prints how many of n things were not printed, because a list of the text has at most t.top of them. noun is the
// word for a thing.
func (t *textWriter) more(n int, noun string) {
	switch left := n - t.top; {
	case left == 1:
		_, _ = fmt.Fprintf(t.w, "1 more %s\n", noun)
	case left > 0:
		_, _ = fmt.Fprintf(t.w, "%d more %ss\n", left, noun)
	}
}

// figures returns a value and its percentage of the total, in columns of fixed width.
func (t *textWriter) figures(v int64) string {
	percent := ""
	if t.total != 0 {
		percent = fmt.Sprintf("%.1f %%", 100*float64(v)/float64(t.total))
	}
	return fmt.Sprintf("%*s %8s", t.width, quantity(v, t.unit), percent)
}

// callNode is a function in the tree of calls, with the functions that it calls there.
type callNode struct {
	name   string
	value  int64
	called map[string]*callNode
}

// step returns the node of a called function. If the node does not exist, step makes it if create is set, else it returns nil.
func (n *callNode) step(name string, create bool) *callNode {
	next := n.called[name]
	if next == nil && create {
		if n.called == nil {
			n.called = make(map[string]*callNode)
		}
		next = &callNode{name: name}
		n.called[name] = next
	}
	return next
}

// tree prints the t.top stacks with the greatest values as a tree. The keys of sums are folded stacks, which begin with the values
// of the labels in o.Root. These become one node.
func (t *textWriter) tree(sums map[string]int64, o Options) error {
	n := len(o.Root)
	stacks := slices.SortedFunc(maps.Keys(sums), func(a, b string) int {
		return cmp.Or(cmp.Compare(magnitude(sums[b]), magnitude(sums[a])), cmp.Compare(a, b))
	})
	root, nodes := &callNode{}, charger{memory: o.Memory}
	walk := func(stack string, v int64, create bool) {
		path := strings.Split(stack, ";")
		if n > 0 && len(path) >= n {
			path[n-1] = strings.Join(path[:n], " ")
			path = path[n-1:]
		}
		for at := root; len(path) > 0; path = path[1:] {
			if at = at.step(path[0], create); at == nil {
				return
			}
			at.value = plus(at.value, v)
		}
	}
	for _, stack := range stacks[:min(t.top, len(stacks))] {
		if err := nodes.charge(int64(nodeBytes+textBytes)*int64(1+strings.Count(stack, ";")), "stacks"); err != nil {
			return err
		}
		walk(stack, 0, true)
	}
	if err := nodes.flush("stacks"); err != nil {
		return err
	}
	for _, stack := range stacks {
		walk(stack, sums[stack], false)
	}
	_, _ = fmt.Fprintf(t.w, "\n%*s %8s  %s\n", t.width, "TOTAL", "", "CALLS")
	t.calls(root, 0)
	t.more(len(stacks), "stack")
	return nil
}

// calls prints the functions that the function of n calls, and so on. If a function has one callee with an equal value,
// the callee is printed below it without figures and without further indentation.
func (t *textWriter) calls(n *callNode, indent int) {
	const deepest = 50 // levels of indentation
	list := slices.SortedFunc(maps.Values(n.called), func(a, b *callNode) int {
		return cmp.Or(cmp.Compare(magnitude(b.value), magnitude(a.value)), cmp.Compare(a.name, b.name))
	})
	for _, c := range list {
		_, _ = fmt.Fprintf(t.w, "%s  %s%s\n", t.figures(c.value), strings.Repeat("  ", min(indent, deepest)), c.name)
		for len(c.called) == 1 {
			var next *callNode
			for _, next = range c.called {
			}
			if next.value != c.value {
				break
			}
			_, _ = fmt.Fprintf(t.w, "%*s  %s%s\n", t.width+len(" 100.0 % "), "", strings.Repeat("  ", min(indent, deepest)), next.name)
			c = next
		}
		t.calls(c, indent+1)
	}
}

// totals returns a line with the sum of each sample type, and the duration.
func totals(p *profile.Profile) string {
	words := make([]string, 0, len(p.SampleType)+1)
	for i, t := range p.SampleType {
		sum := int64(0)
		for _, s := range p.Sample {
			sum = plus(sum, s.Value[i])
		}
		if amount := quantity(sum, t); t.Unit == "count" {
			words = append(words, amount+" "+shown(t.Type))
		} else {
			words = append(words, shown(t.Type)+" "+amount+runnable(p, i, sum))
		}
	}
	if d := time.Duration(p.DurationNanos); d > 0 {
		words = append(words, "duration "+quantity(int64(d), &profile.ValueType{Unit: "nanoseconds"}))
	}
	return strings.Join(words, ", ")
}

// Label and value of samples in which the process waited for a processor, and the sample type that has their time. package
// clusterprofile makes them.
const (
	labelOffCPU   = "off_cpu"
	valueRunnable = "runnable"
	typeOffCPU    = "offcpu"
)

// runnable returns a remark on the part of a sum in which processes waited for a processor. It returns "" for other sample types
// than typeOffCPU, and for less than a hundredth of the sum.
func runnable(p *profile.Profile, index int, sum int64) string {
	if p.SampleType[index].Type != typeOffCPU {
		return ""
	}
	part := int64(0)
	for _, s := range p.Sample {
		if labelValue(s, labelOffCPU) == valueRunnable {
			part = plus(part, s.Value[index])
		}
	}
	const least = 100
	if part <= 0 || part < sum/least {
		return ""
	}
	return " (" + quantity(part, p.SampleType[index]) + " of it waiting for a processor)"
}

// magnitude returns the absolute value. It is unsigned, so that the least int64 does not overflow.
func magnitude(v int64) uint64 {
	if v < 0 {
		return -uint64(v)
	}
	return uint64(v)
}
