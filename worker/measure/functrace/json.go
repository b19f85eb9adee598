package functrace

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"pg_stat_backtrace/worker/naming/backtrace"
)

// JSONEvent is the form in which a hit is printed as JSON. StackTrace begins with the caller of the traced function.
//
//nolint:tagliatelle // other tools for Go have these names
type JSONEvent struct {
	ProbeID    string   `json:"ProbeID"`
	PID        int      `json:"PID"`
	UID        int      `json:"UID"`
	StackTrace []string `json:"StackTrace"`
	Argdata    []string `json:"Argdata"`
}

// JSON returns the form for output.
func (e *Event) JSON() JSONEvent {
	out := JSONEvent{
		ProbeID: e.Traced.Name, PID: e.PID, UID: e.UID, StackTrace: []string{}, Argdata: []string{},
	}
	out.Argdata = append(out.Argdata, e.Arguments...)
	if e.Thread != nil {
		out.StackTrace = stackTrace(e.Thread, e.Traced)
	}
	return out
}

// stackTrace prints the callers of a traced function: "function (file:line)", and for a call that the compiler has put
// inline "function (file:line) [inlined in function]". The frames in which Go's run time begins a goroutine are left
// out, as in Go's own stack traces.
func stackTrace(th *backtrace.Thread, t *Traced) []string {
	frames := th.Frames
	if !t.Static {
		// The first frame is the traced function itself.
		for len(frames) > 0 && frames[0].Inlined {
			frames = frames[1:]
		}
		frames = frames[min(1, len(frames)):]
	}
	if t.Go {
		for len(frames) > 0 {
			last := strings.TrimSuffix(frames[len(frames)-1].Function, ".abi0")
			if last != "runtime.goexit" && last != "runtime.main" {
				break
			}
			frames = frames[:len(frames)-1]
		}
	}
	list := make([]string, len(frames))
	for i := range frames {
		f := &frames[i]
		list[i] = f.Label()
		switch {
		case f.File != "":
			list[i] += fmt.Sprintf(" (%s:%d)", f.File, f.Line)
		case f.Function != "":
			list[i] += " (" + f.Module + ")"
		}
		if !f.Inlined {
			continue
		}
		for j := i + 1; j < len(frames); j++ {
			if !frames[j].Inlined {
				list[i] += " [inlined in " + frames[j].Label() + "]"
				break
			}
		}
	}
	return list
}

// JSONTotals are the figures at the end.
//
//nolint:tagliatelle // as in JSONEvent
type JSONTotals struct {
	Totals []JSONTotal `json:"Totals"`
	Notes  []string    `json:"Notes"`
}

// JSONTotal are the figures of a function in a process.
//
//nolint:tagliatelle // as in JSONEvent
type JSONTotal struct {
	ProbeID    string
	Function   string
	Module     string
	PID        int
	Process    string
	Hits       uint64
	Stacks     uint64
	Lost       uint64
	SampledOut uint64
	Failed     uint64
	// Returns and MeanNanoseconds are of all processes. Buckets has the numbers of calls whose duration is less than
	// 2, 4, 8 ... ns.
	Returns         uint64   `json:",omitempty"`
	MeanNanoseconds uint64   `json:",omitempty"`
	Buckets         []uint64 `json:",omitempty"`
}

// Totals returns the figures for output.
func (r *Result) Totals() JSONTotals {
	out := JSONTotals{Totals: []JSONTotal{}, Notes: append([]string{}, r.Notes...)}
	for i := range r.Functions {
		f := &r.Functions[i]
		for j := range f.Processes {
			p := &f.Processes[j]
			out.Totals = append(out.Totals, JSONTotal{
				ProbeID: f.Name, Function: f.Function, Module: f.Module, PID: p.PID, Process: p.Title, Hits: p.Hits,
				Stacks: p.Stacks, Lost: p.Lost, SampledOut: p.Skipped, Failed: p.Failed,
			})
		}
		if f.Latency != nil && f.Latency.Returns > 0 {
			out.Totals = append(out.Totals, JSONTotal{
				ProbeID: f.Name, Function: f.Function, Module: f.Module, Hits: f.Total().Hits, Returns: f.Latency.Returns,
				MeanNanoseconds: f.Latency.Total / f.Latency.Returns, Buckets: f.Latency.Buckets[:],
			})
		}
	}
	return out
}

// byCount returns the keys, those with the largest numbers first.
func byCount(counts map[string]uint64) []string {
	return slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
}
