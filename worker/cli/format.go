package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/visible"
)

// The formats of a stack.
const (
	formatText   = "text"
	formatJSON   = "json"
	formatBrief  = "brief"
	formatShort  = "short" // the former name of a format that formatBrief replaces
	formatFolded = "folded"
)

var formats = []string{formatText, formatJSON, formatBrief, formatShort, formatFolded, formatCompressed}

// print prints a trace, if what is told of all together is not all that is wanted.
func (r *rounds) print(t *backtrace.Trace) error {
	if r.stats {
		return nil
	}
	w := r.stdout
	var err error
	switch r.format {
	case formatJSON:
		err = render.JSON(w, t)
	case formatFolded:
		r.folded.Add(t, 1)
	case formatCompressed:
		err = r.compressed.write(w, t)
	case formatBrief, formatShort:
		colour := isColoured(w)
		title := ""
		if s := r.titles[t.PID]; s != "" {
			title = " (" + visible.Line(s) + ")"
		}
		_, err = fmt.Fprintf(w, "%s\n%s\n", render.Heading(fmt.Sprintf("process %d%s", t.PID, title), colour),
			indented(render.Brief(t, render.Options{Colour: colour})))
	default:
		how := "not stopped" // the stack says why
		if t.Pause > 0 {
			how = fmt.Sprintf("stopped for %.1f us", float64(t.Pause.Nanoseconds())/1e3)
		}
		title := ""
		if s := r.titles[t.PID]; s != "" {
			title = " (" + visible.Line(s) + ")"
		}
		does := ""
		if p := render.Phrase(t); p.Text != "" && !p.Generic {
			does = p.Text + "\n"
		}
		_, err = fmt.Fprintf(w, "process %d%s, %s\n%s%s\n", t.PID, title, how, does, render.Text(t, render.Options{}))
	}
	return err
}

// total prints what is told of all rounds together.
func (r *rounds) total() error {
	switch taken := &r.taken; {
	case r.stats && taken.count() > 0:
		return taken.print(r.stdout)
	case !r.stats && r.format == formatFolded:
		return r.folded.Write(r.stdout)
	}
	return nil
}

// indented returns a text with two spaces before each line.
func indented(text string) string {
	const indent = "  "
	return indent + strings.ReplaceAll(text, "\n", "\n"+indent)
}

// isColoured reports whether a text for this output has colours: on a terminal that can show them, except if the
// environment variable NO_COLOR is set.
func isColoured(w io.Writer) bool {
	if c, ok := w.(*checkedWriter); ok {
		w = c.w
	}
	file, ok := w.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "" && os.Getenv("TERM") != "dumb" && isTerminal(file)
}
