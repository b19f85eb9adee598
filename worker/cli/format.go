package cli

import (
	"fmt"

	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/visible"
)

// The formats of a stack.
const (
	formatText   = "text"
	formatJSON   = "json"
	formatShort  = "short"
	formatFolded = "folded"
)

var formats = []string{formatText, formatJSON, formatShort, formatFolded, formatCompressed}

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
	case formatShort:
		if len(r.targets) > 1 {
			_, err = fmt.Fprintf(w, "%d ", t.PID)
		}
		if err == nil {
			_, err = fmt.Fprintln(w, render.Short(t, render.Options{}))
		}
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
