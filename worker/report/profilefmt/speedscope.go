package profilefmt

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"sort"
	"strconv"

	"github.com/google/pprof/profile"
)

// The types of a speedscope file, which https://www.speedscope.app/file-format-schema.json defines. The lists are not in the types:
// their elements are written one by one, since the JSON of all elements may take more memory than the profile.
type (
	speedscopeFile struct {
		Schema   string `json:"$schema"`
		Name     string `json:"name"`
		Exporter string `json:"exporter"`
		Active   int    `json:"activeProfileIndex"` //nolint:tagliatelle // the schema's name
	}
	speedscopeFrame struct {
		Name string `json:"name"`
		File string `json:"file,omitempty"`
	}
	speedscopeProfile struct {
		Type  string `json:"type"`
		Name  string `json:"name"`
		Unit  string `json:"unit"`
		Start int64  `json:"startValue"` //nolint:tagliatelle // the schema's name
		End   int64  `json:"endValue"`   //nolint:tagliatelle // the schema's name
	}
)

// A speedscope writes a speedscope file.
type speedscope struct {
	w     *bufio.Writer // keeps an error until Flush
	table *table
	roots []string // different values of the root labels: the first frames of the file
	paths [][]int  // different lists of indexes of roots
	list  []weighted
}

// writeSpeedscope prints a file with one speedscope profile for each sample type. Stacks are sorted, since a profile has no order
// in time. Speedscope cannot show negative values. They are left out, and the name of the speedscope profile has their number.
func writeSpeedscope(w *bufio.Writer, p *profile.Profile, index int, o Options) error {
	s := &speedscope{w: w, table: newTable(o.Memory)}
	if err := s.sum(p, o.Root); err != nil {
		return err
	}
	s.open(speedscopeFile{
		Schema: "https://www.speedscope.app/file-format-schema.json",
		Name:   shown(o.Title), Exporter: "pg_stat_backtrace", Active: index,
	})
	s.text(`,"shared":{"frames":[`)
	s.frames()
	s.text(`]},"profiles":[`)
	for i, unit := range p.SampleType {
		s.separate(i)
		s.profile(i, unit)
	}
	s.text("]}\n")
	return nil
}

// speedscopeTimes returns how many speedscope profiles of the file contain the stack of a sample.
func speedscopeTimes(s *profile.Sample) (n int) {
	for _, v := range s.Value {
		if v > 0 {
			n++
		}
	}
	return n
}

// sum adds up the samples by their root labels and stacks.
func (s *speedscope) sum(p *profile.Profile, labels []string) (err error) {
	byRoot, byPath := make(map[string]int), make(map[string]int)
	root := func(text string) int {
		return number(byRoot, text, func() { s.table.names.charge(textBytes); s.roots = append(s.roots, s.table.names.keep(text)) })
	}
	s.list, err = s.table.sum(p, func(sample *profile.Sample) int {
		path := make([]int, len(labels))
		for i, label := range labels {
			path[i] = root(cmp.Or(shown(labelValue(sample, label)), "[no "+label+"]"))
		}
		return number(byPath, fmt.Sprint(path), func() {
			s.table.names.charge(16*len(path) + 2*textBytes)
			s.paths = append(s.paths, path)
		})
	})
	if err != nil {
		return err
	}
	sort.SliceStable(s.list, func(i, j int) bool {
		a, b := s.list[i], s.list[j]
		return cmp.Compare(a.labels, b.labels) < 0
	})
	size := 0
	for _, fn := range s.table.functions { // the file repeats a name that several functions have
		if size += len(fn.name) + len(s.file(fn)); size > maxText {
			return errNames
		}
	}
	return nil
}

// number returns the number of a key. Keys are numbered in the order of the calls. For a new key, number calls the function add.
func number(known map[string]int, key string, add func()) int {
	i, ok := known[key]
	if !ok {
		i = len(known)
		known[key] = i
		add()
	}
	return i
}

// file returns the source file of a function, or its module if the source file is not known.
func (s *speedscope) file(fn function) string {
	return cmp.Or(fn.file, s.table.modules[fn.module].name)
}

// frames writes the table of frames: first the values of root labels, then functions.
func (s *speedscope) frames() {
	for i, text := range s.roots {
		s.separate(i)
		s.value(speedscopeFrame{Name: text})
	}
	for i, fn := range s.table.functions {
		s.separate(len(s.roots) + i)
		s.value(speedscopeFrame{fn.name, s.file(fn)})
	}
}

// frame returns the index in the file's list of frames for a frame that has the number n in the table.
func (s *speedscope) frame(n int32) int {
	n /= 2
	if merged := s.table.functions[n].merged; merged >= 0 {
		return len(s.roots) + merged
	}
	return len(s.roots) + int(n)
}

// profile writes the speedscope profile of one sample type.
func (s *speedscope) profile(index int, unit *profile.ValueType) {
	p := speedscopeProfile{Type: "sampled", Name: shown(unit.Type), Unit: speedscopeUnit(unit.Unit)}
	negative := 0
	for i := range s.list {
		switch v := s.list[i].values[index]; {
		case v > 0:
			p.End = plus(p.End, v)
		case v < 0:
			negative++
		}
	}
	if negative > 0 {
		p.Name += fmt.Sprintf(" (%d negative values left out)", negative)
	}
	s.open(p)
	s.text(`,"samples":[`)
	s.each(index, s.stack)
	s.text(`],"weights":[`)
	s.each(index, func(sample *weighted) { s.number(sample.values[index]) })
	s.text(`]}`)
}

// each calls the callback write for every stack that has a positive value of the sample type index, and writes commas between the
// results.
func (s *speedscope) each(index int, write func(*weighted)) {
	n := 0
	for i := range s.list {
		if s.list[i].values[index] > 0 {
			s.separate(n)
			write(&s.list[i])
			n++
		}
	}
}

// stack writes the frames of a stack, outermost first.
func (s *speedscope) stack(sample *weighted) {
	s.text("[")
	path := s.paths[sample.labels]
	for i, n := range path {
		s.separate(i)
		s.number(int64(n))
	}
	for i, n := range sample.stack {
		s.separate(len(path) + i)
		s.number(int64(s.frame(n)))
	}
	s.text("]")
}

// separate writes the comma before an element of a list, except the first one.
func (s *speedscope) separate(index int) {
	if index > 0 {
		s.text(",")
	}
}

func (s *speedscope) text(text string) { _, _ = s.w.WriteString(text) }

func (s *speedscope) number(n int64) {
	_, _ = s.w.Write(strconv.AppendInt(s.w.AvailableBuffer(), n, 10))
}

func (s *speedscope) value(v any) { _, _ = s.w.Write(encode(v)) }

// open writes an object without its closing brace.
func (s *speedscope) open(v any) { _, _ = s.w.Write(bytes.TrimSuffix(encode(v), []byte("}"))) }

// encode encodes a value of the types of a speedscope file as JSON.
func encode(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // impossible: the types have only strings and numbers
	}
	return text
}

func speedscopeUnit(unit string) string {
	switch unit {
	case "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes":
		return unit
	}
	return "none"
}
