package profilefmt

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/google/pprof/profile"
)

// The structure of a speedscope file. https://www.speedscope.app/file-format-schema.json defines it. The lists are not
// in the types: their elements are written one by one, since all of them may take more memory than the profile.
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

// A speedscope writes a file of this format.
type speedscope struct {
	w     *bufio.Writer // keeps an error until Flush
	table *table
	roots []string // distinct values of the root labels: the first frames of the file
	paths [][]int  // distinct lists of root frames
	list  []weighted
}

// writeSpeedscope prints a profile of each sample type. Stacks are sorted, since a profile has no order in time.
// Speedscope cannot show negative values: they are left out, and the profile's name says how many.
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

// speedscopeTimes returns how many profiles of the file have the stack of a sample.
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
	slices.SortStableFunc(s.list, func(a, b weighted) int { return cmp.Compare(a.labels, b.labels) })
	size := 0
	for _, fn := range s.table.functions { // several functions may have one name, and the file repeats it
		if size += len(fn.name) + len(s.file(fn)); size > maxText {
			return errNames
		}
	}
	return nil
}

// number numbers keys in the order in which they come. A new key calls add.
func number(known map[string]int, key string, add func()) int {
	i, ok := known[key]
	if !ok {
		i = len(known)
		known[key] = i
		add()
	}
	return i
}

// file returns the source file of a function, or else its module.
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

// frame returns the index of a numbered frame in the table of frames.
func (s *speedscope) frame(n int32) int {
	n /= 2
	if merged := s.table.functions[n].merged; merged >= 0 {
		return len(s.roots) + merged
	}
	return len(s.roots) + int(n)
}

// profile writes the stacks with a value of one sample type.
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

// each writes an element for each stack with a positive value of one sample type.
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

// encode encodes a value of the types above.
func encode(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // they have strings and numbers only
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
