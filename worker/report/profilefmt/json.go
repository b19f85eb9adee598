package profilefmt

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/unwind/budget"
)

// JSONProfile is a profile: stacks with the values that were measured for each stack.
type JSONProfile struct {
	jsonHead

	// Samples are in descending order of DefaultValue.
	Samples []JSONSample `json:"samples"`
}

// jsonHead has the members of a profile except its samples, which writeJSON encodes one by one.
type jsonHead struct {
	Title string `json:"title"`
	// About is a line about the origin of the profile and its completeness.
	About string `json:"about,omitempty"`
	// Time is the time at which the profile began.
	Time time.Time `json:"time,omitzero"`
	// Seconds is the duration of the profile.
	Seconds float64 `json:"seconds,omitempty"`
	// Values describes the members of Values in each sample.
	Values []jsonValue `json:"values"`
	// DefaultValue is the name of the most important value.
	DefaultValue string `json:"default_value"`
	// Notes name the missing parts.
	Notes []string `json:"notes,omitempty"`
}

// jsonValue describes a sample type: a kind of value.
type jsonValue struct {
	// Name ends in the unit, except for counts.
	Name string `json:"name"`
	// Type and Unit are the type and the unit in the pprof format.
	Type string `json:"type"`
	Unit string `json:"unit"`
}

// JSONSample is a stack with its values. Several samples with different labels can have the same stack.
type JSONSample struct {
	// Values has the values by name. Values of 0 are absent.
	Values map[string]int64 `json:"values"`
	// Labels has the labels by name, such as pid.
	Labels map[string]string `json:"labels,omitempty"`
	// Stack has the innermost frame first.
	Stack []JSONFrame `json:"stack"`
}

// JSONFrame is a call of a function.
type JSONFrame struct {
	// Function is the name of the function, or the address if the name is not known.
	Function string `json:"function"`
	Module   string `json:"module,omitempty"`
	File     string `json:"file,omitempty"`
	Line     int64  `json:"line,omitempty"`
	// Inlined is set if the code of the call is inside the code of the next frame.
	Inlined bool `json:"inlined,omitempty"`
}

// writeJSON prints a JSONProfile on one line. It encodes the samples one by one, because the JSON of all samples may take more
// memory than the profile.
func writeJSON(w *bufio.Writer, p *profile.Profile, index int, o Options) error {
	head := jsonHead{Title: shown(o.Title), About: shown(o.Subtitle), Seconds: float64(p.DurationNanos) / 1e9}
	if p.TimeNanos != 0 {
		head.Time = time.Unix(0, p.TimeNanos).UTC()
	}
	for _, note := range o.Notes {
		head.Notes = append(head.Notes, shown(note))
	}
	names := valueNames(p)
	for i, t := range p.SampleType {
		head.Values = append(head.Values, jsonValue{names[i], shown(t.Type), shown(t.Unit)})
	}
	head.DefaultValue = names[index]
	_, _ = w.Write(bytes.TrimSuffix(jsonText(head), []byte("}"))) // the writer keeps an error until Flush
	_, _ = w.WriteString(`,"samples":[`)
	samples := slices.Clone(p.Sample)
	slices.SortStableFunc(samples, func(a, b *profile.Sample) int { return cmp.Compare(b.Value[index], a.Value[index]) })
	j := jsonWriter{w: w, names: names, frames: make(map[*profile.Location]jsonFrames), memory: o.Memory}
	for i, s := range samples {
		if i > 0 {
			_ = w.WriteByte(',')
		}
		if err := j.sample(s); err != nil {
			return err
		}
	}
	_, _ = w.WriteString("]}\n")
	return nil
}

// A jsonWriter prints samples. It encodes the frames of each location once.
type jsonWriter struct {
	w      *bufio.Writer
	names  []string // names of the values, by index
	frames map[*profile.Location]jsonFrames
	memory *budget.Budget
}

// jsonFrames are the encoded frames of a location, with commas between them.
type jsonFrames struct {
	text  []byte
	count int
}

func (j *jsonWriter) sample(s *profile.Sample) error {
	out := JSONSample{Values: make(map[string]int64, len(j.names)), Labels: jsonLabels(s), Stack: []JSONFrame{}}
	for i, v := range s.Value {
		if v != 0 {
			out.Values[j.names[i]] = v
		}
	}
	_, _ = j.w.Write(bytes.TrimSuffix(jsonText(out), []byte("]}")))
	depth := 0
	for i, loc := range s.Location {
		frames, err := j.location(loc)
		if err != nil {
			return err
		}
		if i > 0 {
			_ = j.w.WriteByte(',')
		}
		if depth += frames.count; depth > maxDepth {
			frames.text = jsonText(JSONFrame{Function: cutStack})
		}
		_, _ = j.w.Write(frames.text)
		if depth > maxDepth {
			break
		}
	}
	_, err := j.w.WriteString("]}")
	return err
}

// location returns the frames of a location, innermost first.
func (j *jsonWriter) location(loc *profile.Location) (jsonFrames, error) {
	if known, ok := j.frames[loc]; ok {
		return known, nil
	}
	var out jsonFrames
	for i, f := range locationFrames(nil, loc) {
		if out.count++; out.count > maxDepth {
			break
		}
		one := JSONFrame{Function: shown(f.name), Module: f.module, File: shown(f.file), Inlined: f.inlined}
		if i < len(loc.Line) {
			one.Line = max(0, loc.Line[i].Line)
		}
		if i > 0 {
			out.text = append(out.text, ',')
		}
		out.text = append(out.text, jsonText(one)...)
	}
	if err := j.memory.Charge(int64(len(out.text))+textBytes, "frames"); err != nil {
		return out, err
	}
	j.frames[loc] = out
	return out, nil
}

// jsonLabels returns the labels of a sample as text; nil if it has none.
func jsonLabels(s *profile.Sample) map[string]string {
	var labels map[string]string
	for _, key := range slices.Concat(slices.Sorted(maps.Keys(s.Label)), slices.Sorted(maps.Keys(s.NumLabel))) {
		if labels == nil {
			labels = make(map[string]string)
		}
		if name := shown(key); labels[name] == "" { // two long names may be equal after the cut: keep the first label
			labels[name] = shown(labelValue(s, key))
		}
	}
	return labels
}

// valueNames returns a unique name in snake case for each sample type, with the unit at the end, except for counts.
func valueNames(p *profile.Profile) []string {
	names := make([]string, len(p.SampleType))
	used := make(map[string]bool)
	for i, t := range p.SampleType {
		name := snake(t.Type)
		unit := snake(t.Unit)
		switch unit {
		case "count", "":
			unit = ""
		case "nanoseconds", "nanosecond":
			unit = "_ns"
		case "microseconds", "microsecond":
			unit = "_us"
		case "milliseconds", "millisecond":
			unit = "_ms"
		default:
			unit = "_" + unit
		}
		if strings.HasSuffix(name, unit) {
			unit = ""
		}
		name = cmp.Or(name, "value") + unit
		for n, base := 2, name; used[name]; n++ {
			name = fmt.Sprintf("%s_%d", base, n)
		}
		used[name], names[i] = true, name
	}
	return names
}

// snake converts a name to letters of ASCII, digits and single underscores.
func snake(name string) string {
	return strings.Join(strings.FieldsFunc(strings.ToLower(cut(name)), func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}), "_")
}

// jsonText encodes a value of one of the JSON types of this file, without a line end.
func jsonText(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // impossible: the types have only strings, numbers and times that JSON can represent
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
