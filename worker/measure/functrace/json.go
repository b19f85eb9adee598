package functrace

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"pg_stat_backtrace/worker/naming/backtrace"
)

// JSONEvent is a call of a traced function.
type JSONEvent struct {
	// Probe is the name that the user gave for the function or the static probe.
	Probe string `json:"probe"`
	PID   int    `json:"pid"`
	UID   int    `json:"uid"`
	// Stack has the callers, the innermost first: it begins with the caller of the function.
	Stack []string `json:"stack"`
	// Arguments are the values that --args requested, such as arg1=3.
	Arguments []string `json:"arguments"`

	formerEvent
}

// formerEvent has the members with their names of version 1.2.
//
//nolint:tagliatelle // the names of version 1.2
type formerEvent struct {
	// Deprecated: read probe.
	FormerProbe string `json:"ProbeID"`
	// Deprecated: read pid.
	FormerPID int `json:"PID"`
	// Deprecated: read uid.
	FormerUID int `json:"UID"`
	// Deprecated: read stack.
	FormerStack []string `json:"StackTrace"`
	// Deprecated: read arguments.
	FormerArguments []string `json:"Argdata"`
}

// JSON returns the event in its JSON form.
func (e *Event) JSON() JSONEvent {
	stack := []string{}
	if e.Thread != nil {
		stack = stackTrace(e.Thread, e.Traced)
	}
	arguments := append([]string{}, e.Arguments...)
	return JSONEvent{
		e.Traced.Name, e.PID, e.UID, stack, arguments,
		formerEvent{e.Traced.Name, e.PID, e.UID, stack, arguments},
	}
}

// stackTrace returns the callers of a traced function as "function (file:line)", and for an inlined call as
// "function (file:line) [inlined in function]". It omits the frames in which Go's run time begins a goroutine, as Go's own stack
// traces do.
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

// JSONTotals is the last line of the output: the figures of all calls.
type JSONTotals struct {
	Totals []jsonTotal `json:"totals"`
	Notes  []string    `json:"notes"`
	// Deprecated: read totals.
	FormerTotals []formerTotal `json:"Totals"` //nolint:tagliatelle // the name of version 1.2
	// Deprecated: read notes.
	FormerNotes []string `json:"Notes"` //nolint:tagliatelle // the name of version 1.2
}

// jsonTotal has the figures of a function in a process. If PID is 0 and Returns is set, it has the durations of the function
// in all processes.
type jsonTotal struct {
	Probe    string `json:"probe"`
	Function string `json:"function"`
	Module   string `json:"module"`
	PID      int    `json:"pid"`
	Process  string `json:"process"`
	// Hits is the number of calls.
	Hits uint64 `json:"hits"`
	// Stacks is the number of calls with a stack. Lost is the number of calls whose stack was lost for lack of room. SampledOut is
	// the number of calls without a stack because of --max-overhead or the limit of stacks.
	Stacks     uint64 `json:"stacks"`
	Lost       uint64 `json:"lost"`
	SampledOut uint64 `json:"sampled_out"`
	// Failed is the number of calls that did not meet the condition of --when. These calls are not in Hits.
	Failed uint64 `json:"failed"`
	// Returns is the number of calls that have returned.
	Returns uint64 `json:"returns,omitempty"`
	// MeanNanoseconds is the mean duration of the calls that have returned.
	MeanNanoseconds uint64 `json:"mean_ns,omitempty"`
	// Buckets is a histogram of durations: the numbers of calls that took less than 2 ns, from 2 to 4 ns, from 4 to 8 ns, and so
	// on. The last of the 40 has no upper limit.
	Buckets []uint64 `json:"buckets,omitempty"`
}

// formerTotal is a jsonTotal with the names of version 1.2.
//
//nolint:tagliatelle // the names of version 1.2
type formerTotal struct {
	Probe           string   `json:"ProbeID"`
	Function        string   `json:"Function"`
	Module          string   `json:"Module"`
	PID             int      `json:"PID"`
	Process         string   `json:"Process"`
	Hits            uint64   `json:"Hits"`
	Stacks          uint64   `json:"Stacks"`
	Lost            uint64   `json:"Lost"`
	SampledOut      uint64   `json:"SampledOut"`
	Failed          uint64   `json:"Failed"`
	Returns         uint64   `json:"Returns,omitempty"`
	MeanNanoseconds uint64   `json:"MeanNanoseconds,omitempty"`
	Buckets         []uint64 `json:"Buckets,omitempty"`
}

// Totals returns the figures in their JSON form.
func (r *Result) Totals() JSONTotals {
	out := JSONTotals{Totals: []jsonTotal{}, Notes: append([]string{}, r.Notes...), FormerTotals: []formerTotal{}}
	out.FormerNotes = out.Notes
	for i := range r.Functions {
		f := &r.Functions[i]
		for j := range f.Processes {
			p := &f.Processes[j]
			out.Totals = append(out.Totals, jsonTotal{
				Probe: f.Name, Function: f.Function, Module: f.Module, PID: p.PID, Process: p.Title, Hits: p.Hits,
				Stacks: p.Stacks, Lost: p.Lost, SampledOut: p.Skipped, Failed: p.Failed,
			})
		}
		if f.Latency != nil && f.Latency.Returns > 0 {
			out.Totals = append(out.Totals, jsonTotal{
				Probe: f.Name, Function: f.Function, Module: f.Module, Hits: f.Total().Hits, Returns: f.Latency.Returns,
				MeanNanoseconds: f.Latency.Total / f.Latency.Returns, Buckets: f.Latency.Buckets[:],
			})
		}
	}
	for _, t := range out.Totals {
		out.FormerTotals = append(out.FormerTotals, formerTotal(t))
	}
	return out
}

// byCount returns the keys, the key with the largest number first.
func byCount(counts map[string]uint64) []string {
	return slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
}
