package render

import (
	"bufio"
	"cmp"
	"io"
	"maps"
	"slices"
	"strconv"

	"pg_stat_backtrace/worker/naming/backtrace"
)

// Folded counts equal stacks, for a flame graph. The zero value is ready to use.
type Folded struct {
	// ByProcess keeps the stacks of different processes apart.
	ByProcess bool

	counts map[string]int
}

// Add counts each stack of the trace so many times.
func (f *Folded) Add(t *backtrace.Trace, times int) {
	if f.counts == nil {
		f.counts = make(map[string]int)
	}
	for i := range t.Threads {
		// A core file has one name for all threads.
		name := cmp.Or(t.Threads[i].Name, t.Threads[0].Name, noName)
		f.counts[f.stack(t.PID, name, &t.Threads[i])] += times
	}
	for i := range t.Goroutines {
		f.counts[f.stack(t.PID, "goroutines", &t.Goroutines[i].Thread)] += times
	}
}

// noName replaces the name of a process without one. A flame graph has no frame with an empty name.
const noName = "[no name]"

// Write prints a line for each stack, in alphabetical order. A line has the name of the thread and the frames from
// the outermost to the innermost, separated by semicolons, and then a space and the count. Brendan Gregg's
// flamegraph.pl and similar programs read this format. As in the output of its stackcollapse programs, an inlined
// call ends in "_[i]". A module in brackets replaces a function without a name. "..." is the missing part of a cut
// stack.
//
// A function in one of PostgreSQL's procedural languages is a frame within the C frame that runs it.
func (f *Folded) Write(w io.Writer) error {
	out := bufio.NewWriter(w)
	for _, stack := range slices.Sorted(maps.Keys(f.counts)) {
		_, _ = out.WriteString(stack) // an error is kept until Flush
		_, _ = out.WriteString(" " + strconv.Itoa(f.counts[stack]) + "\n")
	}
	return out.Flush()
}

func (f *Folded) stack(pid int, name string, th *backtrace.Thread) string {
	buf := appendFolded(make([]byte, 0, 1024), name)
	if f.ByProcess {
		buf = append(buf, '-')
		buf = strconv.AppendInt(buf, int64(pid), 10)
	}
	if len(th.Frames) == 0 {
		return string(appendFolded(append(buf, ';'), "["+th.Stop+"]"))
	}
	if !th.Whole {
		buf = append(buf, ";..."...)
	}
	for i := range slices.Backward(th.Frames) {
		buf = appendFoldedFrame(append(buf, ';'), &th.Frames[i])
	}
	return string(buf)
}

func appendFoldedFrame(buf []byte, f *backtrace.Frame) []byte {
	switch name := f.Name(); {
	case f.Function == "" && (name == "" || name[0] != '['):
		buf = appendFolded(buf, "["+name+"]")
	case f.Inlined:
		buf = append(appendFolded(buf, name), "_[i]"...)
	default:
		buf = appendFolded(buf, name)
	}
	for i := range slices.Backward(f.Levels) {
		if l := &f.Levels[i]; l.Function != "" {
			buf = appendFolded(append(buf, ';'), string(l.Kind)+":"+l.Function)
		}
	}
	return buf
}

// appendFolded appends a name that separates nothing.
func appendFolded(buf []byte, name string) []byte {
	start := len(buf)
	buf = appendWord(buf, name, false)
	for i := start; i < len(buf); i++ {
		if buf[i] == ';' {
			buf[i] = ':'
		}
	}
	return buf
}
