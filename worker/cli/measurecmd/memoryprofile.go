package measurecmd

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	pprof "github.com/google/pprof/profile"

	"pg_stat_backtrace/worker/report/profilefmt"
	"pg_stat_backtrace/worker/report/units"
)

// Sample types of a profile of memory contexts.
const (
	totalBytes   = "total_bytes"
	usedBytes    = "used_bytes"
	freeBytes    = "free_bytes"
	contextCount = "contexts"
)

// profile prints the contexts as a profile, whose stacks are the paths of contexts.
func (m *processMemory) profile(w io.Writer, format string) error {
	title := fmt.Sprintf("process %d, PostgreSQL %d: memory contexts", m.pid, m.contexts.Major)
	total, free, unknown := m.total()
	notes := m.warnings()
	if unknown > 0 {
		notes = append(notes, "of "+units.Count(unknown, "context")+" the figures could not be read")
	}
	return profilefmt.Write(w, m.contextProfile(), profilefmt.Options{
		Format: format, Title: title, SampleType: totalBytes, Notes: notes, Noun: "context",
		Subtitle: fmt.Sprintf("%s with %d bytes, %d of them free; heap and anonymous mappings: %d bytes",
			units.Count(len(m.contexts.Contexts), "context"), total, free, m.outside.Heap+m.outside.Anonymous),
	})
}

// contextProfile returns a profile with a sample for each path of context names. The values of a sample do not include
// child contexts.
func (m *processMemory) contextProfile() *pprof.Profile {
	p := &pprof.Profile{
		SampleType: []*pprof.ValueType{
			{Type: totalBytes, Unit: "bytes"}, {Type: usedBytes, Unit: "bytes"}, {Type: freeBytes, Unit: "bytes"},
			{Type: contextCount, Unit: "count"},
		},
		DefaultSampleType: totalBytes, TimeNanos: time.Now().UnixNano(),
		PeriodType: &pprof.ValueType{Type: "space", Unit: "bytes"}, Period: 1,
	}
	locations := make(map[string]*pprof.Location)
	list := m.bounded.Contexts
	paths := make([][]*pprof.Location, len(list)) // innermost first
	samples := make(map[string]*pprof.Sample)
	for i := range list {
		c := &list[i]
		name := strings.ReplaceAll(oneLine(c.Name), ";", ":")
		location := locations[name]
		if location == nil {
			f := &pprof.Function{ID: uint64(len(p.Function) + 1), Name: name, SystemName: name}
			location = &pprof.Location{ID: uint64(len(p.Location) + 1), Line: []pprof.Line{{Function: f}}}
			p.Function, p.Location = append(p.Function, f), append(p.Location, location)
			locations[name] = location
		}
		paths[i] = []*pprof.Location{location}
		if c.Parent >= 0 {
			paths[i] = append(paths[i], paths[c.Parent]...)
		}
		var numbers []byte
		for _, l := range paths[i] {
			numbers = append(strconv.AppendUint(numbers, l.ID, 36), ' ')
		}
		key := string(numbers)
		s := samples[key]
		if s == nil {
			s = &pprof.Sample{
				Location: paths[i], Value: make([]int64, len(p.SampleType)),
				Label: map[string][]string{"pid": {strconv.Itoa(m.pid)}},
			}
			samples[key] = s
			p.Sample = append(p.Sample, s)
		}
		for at, n := range []int64{c.Total, c.Used(), c.Free, 1 + int64(c.Deeper)} {
			s.Value[at] += max(0, n)
		}
	}
	return p
}
