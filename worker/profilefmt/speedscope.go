package profilefmt

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/pprof/profile"
)

// The structure of a speedscope file. https://www.speedscope.app/file-format-schema.json defines it.
type (
	speedscopeFile struct {
		Schema   string              `json:"$schema"`
		Name     string              `json:"name"`
		Exporter string              `json:"exporter"`
		Active   int                 `json:"activeProfileIndex"` //nolint:tagliatelle // the schema's name
		Shared   speedscopeShared    `json:"shared"`
		Profiles []speedscopeProfile `json:"profiles"`
	}
	speedscopeShared struct {
		Frames []speedscopeFrame `json:"frames"`
	}
	speedscopeFrame struct {
		Name string `json:"name"`
		File string `json:"file,omitempty"`
	}
	speedscopeProfile struct {
		Type    string  `json:"type"`
		Name    string  `json:"name"`
		Unit    string  `json:"unit"`
		Start   int64   `json:"startValue"` //nolint:tagliatelle // the schema's name
		End     int64   `json:"endValue"`   //nolint:tagliatelle // the schema's name
		Samples [][]int `json:"samples"`
		Weights []int64 `json:"weights"`
	}
)

// writeSpeedscope prints a profile of each sample type. Stacks are sorted, since a profile has no order in time.
// Speedscope cannot show negative values: they are left out, and the profile's name says how many.
func writeSpeedscope(w *bufio.Writer, p *profile.Profile, index int, o Options) error {
	t := newTable()
	file := speedscopeFile{
		Schema: "https://www.speedscope.app/file-format-schema.json",
		Name:   shown(o.Title), Exporter: "pg_stat_backtrace", Active: index,
		Profiles: make([]speedscopeProfile, len(p.SampleType)),
	}
	roots := make([]string, 0, 16) // distinct values of the root labels; a stack has them as negative numbers
	byRoot := make(map[string]int)
	rootNumber := func(text string) int {
		i, ok := byRoot[text]
		if !ok {
			i = len(roots)
			roots = append(roots, text)
			byRoot[text] = i
		}
		return i
	}
	var paths [][]int
	byPath := make(map[string]int)
	list, err := t.sum(p, func(s *profile.Sample) int {
		path := make([]int, len(o.Root))
		for i, label := range o.Root {
			path[i] = rootNumber(cmp.Or(shown(labelValue(s, label)), "[no "+label+"]"))
		}
		key := fmt.Sprint(path)
		n, ok := byPath[key]
		if !ok {
			n = len(paths)
			byPath[key] = n
			paths = append(paths, path)
		}
		return n
	})
	if err != nil {
		return err
	}
	frameNumber := file.frames(t, roots)
	slices.SortStableFunc(list, func(a, b weighted) int { return cmp.Compare(a.labels, b.labels) })
	for i, unit := range p.SampleType {
		file.Profiles[i] = speedscopeProfile{
			Type: "sampled", Name: shown(unit.Type), Unit: speedscopeUnit(unit.Unit), Samples: [][]int{}, Weights: []int64{},
		}
		file.Profiles[i].fill(list, i, func(s *weighted) []int {
			stack := slices.Clone(paths[s.labels])
			for _, n := range s.stack {
				stack = append(stack, frameNumber(int(n)))
			}
			return stack
		})
	}
	return json.NewEncoder(w).Encode(&file)
}

// frames fills the table of frames: first the values of root labels, then functions. It returns what gives the index of
// a numbered frame.
func (f *speedscopeFile) frames(t *table, roots []string) func(int) int {
	f.Shared.Frames = make([]speedscopeFrame, len(roots), len(roots)+len(t.functions))
	for i, text := range roots {
		f.Shared.Frames[i].Name = text
	}
	for _, fn := range t.functions {
		f.Shared.Frames = append(f.Shared.Frames, speedscopeFrame{fn.name, cmp.Or(fn.file, t.modules[fn.module].name)})
	}
	return func(n int) int {
		n /= 2
		if merged := t.functions[n].merged; merged >= 0 {
			n = merged
		}
		return len(roots) + n
	}
}

// fill adds the stacks with a value of one sample type.
func (f *speedscopeProfile) fill(list []weighted, index int, stack func(*weighted) []int) {
	negative := 0
	for i := range list {
		switch v := list[i].values[index]; {
		case v > 0:
			f.Samples = append(f.Samples, stack(&list[i]))
			f.Weights = append(f.Weights, v)
			f.End = plus(f.End, v)
		case v < 0:
			negative++
		}
	}
	if negative > 0 {
		f.Name += fmt.Sprintf(" (%d negative values left out)", negative)
	}
}

func speedscopeUnit(unit string) string {
	switch unit {
	case "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes":
		return unit
	}
	return "none"
}
