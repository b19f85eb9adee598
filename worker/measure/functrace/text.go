package functrace

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/ptrace/measure/probe"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/units"
)

// maxRows bounds the processes and the arguments that the text lists for a function.
const maxRows = 20

// Text prints the numbers of hits, durations and arguments of each function. Package profilefmt prints the stacks.
func (r *Result) Text(w io.Writer) error {
	out := bufio.NewWriter(w)
	for i := range r.Functions {
		if i > 0 {
			_ = out.WriteByte('\n') // an error is kept until Flush
		}
		r.Functions[i].text(out, r.Took)
	}
	for _, note := range r.Notes {
		_, _ = fmt.Fprintf(out, "\nNote: %s.\n", render.VisibleLine(note))
	}
	return out.Flush()
}

func (f *FunctionResult) text(out *bufio.Writer, took time.Duration) {
	sum := f.Total()
	_, _ = fmt.Fprintf(out, "%s: %s in %.1f s\n", f.label(), units.Count(sum.Hits, "hit"), took.Seconds())
	if sum.Failed > 0 {
		_, _ = fmt.Fprintf(out, "%d more did not meet the condition\n", sum.Failed)
	}
	if f.Unread > 0 {
		_, _ = fmt.Fprintln(out, units.Plural(f.Unread, unreadText))
	}
	if len(f.Processes) > 0 {
		_, _ = fmt.Fprintf(out, "\n%10s %10s %8s %8s %8s  %s\n", "hits", "stacks", "lost", "skipped", "pid", "process")
	}
	for i := range f.Processes {
		if i == maxRows {
			_, _ = fmt.Fprintf(out, "%10s %s\n", "", units.Count(len(f.Processes)-maxRows, "more process"))
			break
		}
		p := &f.Processes[i]
		pid, title := strconv.Itoa(p.PID), render.VisibleLine(p.Title)
		if p.PID == 0 {
			pid, title = "", "all other processes"
		}
		_, _ = fmt.Fprintf(out, "%10d %10d %8d %8d %8s  %s\n", p.Hits, p.Stacks, p.Lost, p.Skipped, pid, title)
	}
	if f.Latency != nil {
		latency(out, f.Latency, sum.Hits)
	}
	f.values(out)
}

// values prints the most frequent arguments.
func (f *FunctionResult) values(out *bufio.Writer) {
	if len(f.arguments) == 0 {
		return
	}
	counts := make(map[string]uint64)
	for i := range f.Stacks {
		counts[f.Stacks[i].Arguments] += f.Stacks[i].Count
	}
	list := byCount(counts)
	_, _ = fmt.Fprintf(out, "\n%10s  %s\n", "hits", "arguments")
	for i, text := range list {
		if i == maxRows {
			_, _ = fmt.Fprintf(out, "%10s  %d more\n", "", len(list)-maxRows)
			break
		}
		_, _ = fmt.Fprintf(out, "%10d  %s\n", counts[text], render.VisibleLine(text))
	}
}

// latency prints a histogram of durations, by powers of two.
func latency(out *bufio.Writer, l *probe.Latency, hits uint64) {
	if l.Returns == 0 {
		_, _ = fmt.Fprintf(out, "\nno call has returned\n")
		return
	}
	mean := time.Duration(l.Total / l.Returns)
	_, _ = fmt.Fprintf(out, "\n%s returned, mean %s, longest %s", units.Count(l.Returns, "call"), units.Duration(mean),
		units.Duration(time.Duration(l.Longest)))
	if hits > l.Returns {
		_, _ = fmt.Fprintf(out, "; %d did not: they still run, or an error ended them", hits-l.Returns)
	}
	_, _ = fmt.Fprintf(out, "\n%16s %10s\n", "duration", "calls")
	low, high, most := -1, 0, uint64(0)
	for b, n := range l.Buckets {
		if n > 0 {
			if low < 0 {
				low = b
			}
			high, most = b, max(most, n)
		}
	}
	for b := low; b <= high; b++ {
		const width = 40
		n := l.Buckets[b]
		bar := strings.Repeat("#", int((n*width+most-1)/most))
		limit := "< " + units.Duration(time.Duration(2)<<b)
		if b == len(l.Buckets)-1 { // it has no end
			limit = ">= " + units.Duration(time.Duration(1)<<b)
		}
		_, _ = fmt.Fprintf(out, "%16s %10d %s\n", limit, n, bar)
	}
}

// unreadText is a text for units.Plural.
const unreadText = "%d {stack is of a process|stacks are of processes} that ended before {it|they} could be read"
