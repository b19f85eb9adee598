package waitevent

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/table"
	"pg_stat_backtrace/worker/report/units"
)

// Sees describes in some sentences the waits that a method sees; empty: the method is not known.
func Sees(info waits.Info) string {
	if seen := sees(info); seen != "" {
		return seen + " The times contain the time from the wakeup until the process has a processor."
	}
	return ""
}

// SeesOfTrace describes in some sentences the executions of queries that a trace of a session by query sees.
func SeesOfTrace(info waits.Info) string {
	if info.Method == waits.Blocked {
		return "The end of an execution is seen when the session sleeps: if its next query has already arrived, the " +
			"execution may be missing. The method exact sees it."
	}
	return "An execution ends when the session answers. So of queries that the client sends in one message, or without " +
		"waiting for answers (a pipeline), the last execution ends, and others are seen only where they wait."
}

func sees(info waits.Info) string {
	switch info.Method {
	case waits.Exact:
		return "Every wait that enters the kernel is timed. A wait that makes several system calls counts as several."
	case waits.Blocked:
		return "Waits are timed while the process sleeps: reads from the page cache do not show. " +
			"A wait that sleeps several times counts as several."
	case waits.Sampled:
		return "Total times are estimates from 100 readings a second. Calls, maxima and histograms are not known."
	case waits.Auto:
	}
	return ""
}

// Text prints the report as a table. It draws histograms with block characters, or with ASCII characters if ascii is set. width is
// the number of columns of the terminal: columns of the table without room are left out, the histogram first. 0: there is no limit.
func (r *Report) Text(w io.Writer, ascii bool, width int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Method %s (%s), %.1f s. %s\n", r.Info.Method, r.Info.Mechanism, r.Took.Seconds(), Sees(r.Info))
	for _, reason := range r.Info.Reasons {
		fmt.Fprintf(&b, "Not used: %s\n", reason)
	}
	for _, q := range r.Queries {
		fmt.Fprintf(&b, "Query %d: %s ended, %s elapsed\n", q.ID, units.Count(q.Executions, "execution"), units.Duration(q.Elapsed))
		if q.Text != "" {
			b.WriteString("    " + render.OneLine(q.Text) + "\n")
		}
	}
	switch {
	case len(r.Rows) == 0 && len(r.Others) > 0:
		b.WriteString("No process waited for a selected event.\n")
	case len(r.Rows) == 0 && r.Selected:
		b.WriteString("No selected process waited.\n")
	case len(r.Rows) == 0:
		b.WriteString("No process waited.\n")
	default:
		b.WriteByte('\n')
		if err := table.NoRoom(&b, r.table(&b, ascii, width)); err != nil {
			return err
		}
	}
	for _, line := range r.Missing() {
		b.WriteString(line + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// table prints the rows. It returns the headings of the columns that had no room.
func (r *Report) table(b *strings.Builder, ascii bool, width int) (left []string) {
	from, to := r.span()
	var total time.Duration
	types, names := len("TYPE"), len("EVENT")
	for i := range r.Rows {
		row := &r.Rows[i]
		if r.Idle || !row.isIdle() {
			total += row.Total
		}
		types, names = max(types, len(row.Type)), max(names, len(row.Name))
	}
	const figures = 5 // columns after the names of the event
	formats := [figures]string{" %9s", " %9s", " %7s", " %9s", " %9s"}
	heads := [figures + 1]string{"CALLS", "TOTAL", "SHARE", "AVERAGE", "MAXIMUM"}
	if r.Queries != nil {
		heads[figures-1] = ""
	} else if r.Info.Counts {
		low, _ := waits.BucketLimits(from)
		_, high := waits.BucketLimits(to)
		heads[figures] = fmt.Sprintf("HISTOGRAM, %s to %s", units.Duration(low), units.Duration(high))
		if high == 0 { // the last range has no end
			heads[figures] = "HISTOGRAM, from " + units.Duration(low)
		}
	}
	shown := r.fitting(width, types+2+names, heads[figures], to-from+1)
	for i := shown; i < len(heads); i++ {
		if name, _, _ := strings.Cut(heads[i], ","); name != "" {
			left = append(left, name)
		}
	}
	line := func(class, name string, cells ...string) {
		text := fmt.Sprintf("%-*s  %-*s", types, class, names, name)
		for i, cell := range cells[:min(shown, len(cells))] {
			if i < figures {
				text += fmt.Sprintf(formats[i], cell)
			} else {
				text += "  " + cell
			}
		}
		b.WriteString(strings.TrimRight(text, " ") + "\n")
	}
	line("TYPE", "EVENT", heads[:]...)
	for i := range r.Rows {
		row := &r.Rows[i]
		share := fmt.Sprintf("%.1f %%", 100*float64(row.Total)/float64(max(total, 1)))
		if !r.Idle && row.isIdle() {
			share = "idle"
		}
		if !r.Info.Counts || row.Calls == 0 {
			line(row.Type, row.Name, "", units.Duration(row.Total), share)
			continue
		}
		cells := []string{strconv.FormatUint(row.Calls, 10), units.Duration(row.Total), share, units.Duration(row.Total / time.Duration(row.Calls))}
		if r.Queries == nil {
			cells = append(cells, units.Duration(row.Longest), bars(row.Buckets[from:to+1], ascii))
		}
		line(row.Type, row.Name, cells...)
	}
	return left
}

// fitting returns how many of the columns of figures, of which the histogram is the last, a terminal with width columns has room for.
// names is the width of the columns before them, and buckets the number of characters of a histogram.
func (r *Report) fitting(width, names int, histogram string, buckets int) int {
	widths := []int{10, 10, 8, 10, 10, 2 + max(len(histogram), buckets)}
	if r.Queries != nil {
		widths = widths[:4]
	} else if histogram == "" {
		widths[5] = 0
	}
	const least = 3 // calls, total time and share
	shown, all := 0, names
	for _, w := range widths {
		if all += w; width > 0 && all > width && shown >= least {
			return shown
		}
		shown++
	}
	return len(widths)
}

// listed returns the names with commas between them, at most 10.
func listed(names []string) string {
	const most = 10
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// span returns the indexes of the first and the last bucket that are not empty in at least one row.
func (r *Report) span() (from, to int) {
	from = waits.Buckets - 1
	for i := range r.Rows {
		for b, n := range r.Rows[i].Buckets {
			if n > 0 {
				from, to = min(from, b), max(to, b)
			}
		}
	}
	return min(from, to), to
}

// bars draws a histogram with a character for each bucket. The height of a character is proportional to the bucket's value; the
// largest value has full height.
func bars(buckets []uint64, ascii bool) string {
	levels := []rune(" ▁▂▃▄▅▆▇█")
	if ascii {
		levels = []rune(" .:-=+*#@")
	}
	var most uint64
	for _, n := range buckets {
		most = max(most, n)
	}
	line := make([]rune, len(buckets))
	for i, n := range buckets {
		line[i] = levels[0]
		if n > 0 {
			line[i] = levels[1+int(float64(n)/float64(most)*float64(len(levels)-2)+0.5)]
		}
	}
	return string(line)
}

// Missing returns sentences about waits that are missing in the figures.
func (r *Report) Missing() (lines []string) {
	if !r.Idle && slices.ContainsFunc(r.Rows, func(row Row) bool { return row.isIdle() }) {
		lines = append(lines, "SHARE leaves out idle waits: the type Activity, and ClientRead.")
	}
	add := func(n uint64, format string) {
		if n > 0 {
			lines = append(lines, units.Plural(n, format))
		}
	}
	if r.Queries != nil {
		add(r.Lost.Queries, "Missing: %d {wait|waits} of queries for which there was no room.")
	}
	add(uint64(r.Unknown), "Missing: the waits of %d {process|processes} whose user and database were not seen.")
	if r.UnknownEnded {
		lines = append(lines, "Missing: the waits of processes that ended before their user and database were seen.")
	}
	if len(r.Others) > 0 {
		lines = append(lines, "Not selected: the waits for "+listed(r.Others)+".")
	}
	add(r.Lost.Overflow, "Missing: %d {wait|waits} of processes that waited for more than 64 events each.")
	add(r.Lost.Processes, "Missing: the figures of %d {process|processes} that ended faster than {it|they} could be read.")
	add(r.Lost.Missed, "Missing: %d system {call or switch|calls or switches} at which the kernel could not run a program.")
	add(r.Lost.Outside, "Not counted: %d {wait|waits} of processes that were just starting or ending.")
	add(uint64(len(r.Info.Unreachable)), "Missing: the waits in which %d {process was|processes were} at the start. "+
		"The kernel did not return from reading their memory.")
	for i := range r.Rows {
		if !r.Rows[i].Known {
			lines = append(lines, "Events with a number in place of a name are unknown to this release, or an extension's.")
			break
		}
	}
	return lines
}
