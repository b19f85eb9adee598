package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/profilefmt"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/units"
)

var formats = []string{
	console.FormatText, console.FormatJSON, console.FormatBrief, console.FormatShort, console.FormatFolded, console.FormatPprof,
	console.FormatSpeedscope, console.FormatHTML, console.FormatCompressed,
}

// print prints a trace. It prints nothing with --stats, and with a format that counts the stacks of all rounds; see the
// method total.
func (r *rounds) print(t *backtrace.Trace) error {
	if r.stats {
		return nil
	}
	w := r.stdout
	var err error
	switch r.format {
	case console.FormatJSON:
		err = render.JSON(w, t)
	case console.FormatFolded, console.FormatPprof, console.FormatSpeedscope, console.FormatHTML:
		r.counted.Add(t, 1)
	case console.FormatCompressed:
		err = r.compressed.Write(w, t)
	default:
		_, err = fmt.Fprintf(w, "%s\n%s\n", r.heading(r.title(t)), r.body(t))
	}
	return err
}

// isBrief reports whether the format is one of the short formats for people.
func (f *captureFlags) isBrief() bool {
	return f.format == console.FormatBrief || f.format == console.FormatShort
}

// heading returns a line that stands above a stack.
func (r *rounds) heading(line string) string {
	return render.Heading(line, r.isBrief() && console.IsColoured(r.stdout))
}

// title says which process was captured, when, and for how long it was stopped.
func (r *rounds) title(t *backtrace.Trace) string {
	line := fmt.Sprintf("process %d", t.PID)
	if s := t.Session; s != nil {
		if s.Title != "" {
			line += " (" + render.VisibleLine(s.Title) + ")"
		}
		for _, part := range []struct{ name, value string }{{"database ", s.Database}, {"user ", s.User}, {"", s.State}} {
			if part.value != "" {
				line += ", " + part.name + render.VisibleLine(part.value)
			}
		}
		if !s.Time.IsZero() {
			line += ", " + s.Time.Format("15:04:05.000")
		}
	}
	switch {
	case r.isBrief():
	case t.Pause > 0:
		line += fmt.Sprintf(", stopped for %.1f us", float64(t.Pause.Nanoseconds())/1e3)
	default:
		line += ", not stopped" // render.Text prints the reason
	}
	return line
}

// body returns the stack of a process, below a line that says what the process does.
func (r *rounds) body(t *backtrace.Trace) string {
	if r.isBrief() {
		return indented(render.Brief(t, render.Options{Colour: console.IsColoured(r.stdout)}))
	}
	does := ""
	isIdle := t.Session != nil && strings.HasPrefix(t.Session.State, "idle")
	if p := render.Phrase(t); p.Text != "" && (!p.Generic || isIdle) {
		does = p.Text + "\n"
	}
	return does + render.Text(t, render.Options{})
}

// total prints the statistics, or the counted stacks, of all rounds.
func (r *rounds) total() error {
	switch taken := &r.taken; {
	case r.stats && taken.count() > 0:
		return taken.print(r.stdout)
	case !r.stats && isProfile(r.format):
		return writeTraces(r.stdout, &r.counted, r.format, units.Count(r.stacks, "stack"))
	}
	return nil
}

// isProfile reports whether a format prints the stacks of all rounds once, at the end, with their counts.
func isProfile(format string) bool {
	return format != console.FormatText && format != console.FormatJSON && slices.Contains(profilefmt.Formats(), format)
}

// writeTraces prints counted stacks.
func writeTraces(w io.Writer, c *profilefmt.Traces, format, title string) error {
	return profilefmt.Write(w, c.Profile(), profilefmt.Options{Format: format, Title: title, Root: []string{profilefmt.LabelThread}})
}

// indented returns a text with two spaces before each line.
func indented(text string) string {
	const indent = "  "
	return indent + strings.ReplaceAll(text, "\n", "\n"+indent)
}
