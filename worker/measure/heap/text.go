package heap

import (
	"bufio"
	"fmt"
	"io"
	"time"

	"pg_stat_backtrace/ptrace/measure/allocs"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/units"
)

// Title returns a line with the process, the length of the trace and the allocator.
func (r *Report) Title() string {
	return fmt.Sprintf("process %d: allocations during %.1f s, allocator %s", r.PID, r.Elapsed.Seconds(), r.Allocator.Name)
}

// Summary returns lines with totals: blocks allocated since the trace began and not yet freed, all blocks allocated since
// then, freed blocks that were allocated before the trace began, and the cost of the trace.
func (r *Report) Summary() []string {
	t, c := r.Total(), &r.Counters
	older := "freed from before the start: "
	if !r.olderExact() {
		older = "freed from before the start, or allocated since without being kept: "
	}
	older += units.Count(c.Older, "block")
	if r.Allocator.target.HasHeaders {
		older += fmt.Sprintf(" with %d bytes (by malloc's own headers)", c.OlderBytes)
		if r.olderExact() {
			older += fmt.Sprintf("; growth %+d bytes", int64(t.LiveBytes-c.OlderBytes))
		}
	}
	list := []string{
		fmt.Sprintf("live since start: %s with %d bytes", units.Count(t.LiveObjects, "block"), t.LiveBytes),
		fmt.Sprintf("allocated: %s with %d bytes, %.0f blocks and %.0f bytes a second", units.Count(t.Objects, "block"), t.Bytes,
			perSecond(t.Objects, r.Elapsed), perSecond(t.Bytes, r.Elapsed)),
		older,
	}
	if r.CPU > 0 {
		list = append(list, fmt.Sprintf("estimated cost of the trace: %s of %s of processor time (%.1f %%)",
			r.Overhead.Round(time.Millisecond), r.CPU.Round(time.Millisecond), 100*r.Share()))
	}
	return list
}

// olderExact reports whether all blocks in Counters.Older were allocated before the trace began. It is false if the BPF
// programs had no room for some allocations: they count the later free of such a block as older too.
func (r *Report) olderExact() bool { return r.Counters.Untracked+r.Counters.LostCalls == 0 }

func perSecond(n uint64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// fewBlocks is the number of allocated blocks below which a note recommends a longer trace.
const fewBlocks = 10

// Notes returns remarks on everything that is missing or not exact.
func (r *Report) Notes() (list []string) {
	c := &r.Counters
	add := func(n uint64, format string, args ...any) {
		if n > 0 {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	if r.Ended {
		list = append(list, "the process has ended: the live blocks are those of its last moment")
	}
	if n := r.Total().Objects; n < fewBlocks && !r.Ended && !r.TooDear {
		list = append(list, fmt.Sprintf("only %s allocated. PostgreSQL takes blocks of up to 8 MB from malloc and divides them itself, so "+
			"slow growth needs a longer --duration. memory %d prints the largest contexts", units.Count(n, "block"), r.PID))
	}
	if r.TooDear {
		list = append(list, fmt.Sprintf("the trace ended after %.1f s because it cost too much: %s, estimated at "+
			"%s of %s of processor time", r.Elapsed.Seconds(), units.Count(c.Calls(), "call"), r.Overhead.Round(time.Millisecond),
			r.CPU.Round(time.Millisecond)))
	}
	add(c.Replaced, "%s with %d bytes had no free that was seen: their addresses were allocated again. "+
		"The live bytes are an upper bound", units.Count(c.Replaced, "block"), c.ReplacedBytes)
	add(c.Untracked, "%s with %d bytes are not among the live ones: only %d are kept apart. "+
		"The live bytes are a lower bound", units.Count(c.Untracked, "block"), c.UntrackedBytes, r.maxBlocks())
	add(c.LostCalls, "%s of threads beyond 4096 at a time are not counted", units.Count(c.LostCalls, "call"))
	add(c.Untracked+c.LostCalls, "blocks that are not kept count, when they are freed, as freed from before the start. "+
		"So no growth is printed")
	add(c.NoStack, "the stack of %s could not be read", units.Count(c.NoStack, "allocation"))
	add(c.OtherStacks, "%s are not kept apart by stack: there are too many call paths",
		units.Count(c.OtherStacks, "allocation"))
	add(c.Failed, "%s failed", units.Count(c.Failed, "allocation"))
	add(c.Shared, "not counted: %s of shared memory with %d bytes", units.Count(c.Shared, "mapping"), c.SharedBytes)
	add(c.UnknownMaps, "not subtracted: %s of %d bytes that were mapped before the start, are shared, or are part of a "+
		"mapping", units.Count(c.UnknownMaps, "munmap"), c.UnknownBytes)
	generated := 0
	for _, p := range r.Paths {
		if p.Stack != nil && p.Stack.Generated {
			generated++
		}
	}
	if note := backtrace.GeneratedNote(generated, len(r.Paths)); note != "" {
		list = append(list, note)
	}
	if !r.Allocator.Mappings() {
		list = append(list, "mmap is not traced: "+r.Allocator.Name+" has none")
	}
	return list
}

// maxBlocks returns the number of blocks not freed yet. It equals the limit of blocks if blocks were left out for lack of
// room.
func (r *Report) maxBlocks() uint64 { return r.Total().LiveObjects }

// Text prints the report: the sums, the notes, and at most top call paths, those with the most live bytes first.
func (r *Report) Text(w io.Writer, top int) error {
	out := bufio.NewWriter(w)
	_, _ = fmt.Fprintln(out, r.Title()) // an error is kept until Flush
	for _, line := range r.Summary() {
		_, _ = fmt.Fprintln(out, line)
	}
	for _, line := range r.Notes() {
		_, _ = fmt.Fprintf(out, "note: %s\n", line)
	}
	total := r.Total()
	for _, p := range r.Paths[:min(top, len(r.Paths))] {
		_, _ = fmt.Fprintf(out, "\nlive %d bytes in %s%s; allocated %d bytes in %s, %.1f a second\n",
			p.LiveBytes, units.Count(p.LiveObjects, "block"), share(p.LiveBytes, &total), p.Bytes, units.Count(p.Objects, "block"),
			perSecond(p.Objects, r.Elapsed))
		if p.Stack == nil {
			_, _ = fmt.Fprintln(out, "(stack not recorded)")
			continue
		}
		text := render.Text(&backtrace.Trace{PID: r.PID, Threads: []backtrace.Thread{*p.Stack}}, render.Options{})
		_, _ = fmt.Fprintln(out, text)
	}
	if left := len(r.Paths) - top; left > 0 {
		var rest allocs.Sums
		for _, p := range r.Paths[top:] {
			rest.LiveBytes += p.LiveBytes
			rest.LiveObjects += p.LiveObjects
		}
		_, _ = fmt.Fprintf(out, "\n%s with %d live bytes in %s\n", units.Count(left, "other call path"), rest.LiveBytes,
			units.Count(rest.LiveObjects, "block"))
	}
	return out.Flush()
}

func share(n uint64, total *allocs.Sums) string {
	if total.LiveBytes == 0 {
		return ""
	}
	return fmt.Sprintf(" (%.1f %%)", 100*float64(n)/float64(total.LiveBytes))
}
