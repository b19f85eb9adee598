package worker

import "pg_stat_backtrace/worker/trace"

// The values of Config.Context. Such a text belongs to the owner of the function, often a SECURITY DEFINER one, and may
// hold data that the role of the session must not see.
const (
	// ContextSuperuser shows it to superusers.
	ContextSuperuser = "superuser"
	// ContextAll shows it to every role that may see the stack. Where results are stored, other roles can read them, so
	// the text is not stored.
	ContextAll = "all"
	// ContextOff hides it from every role.
	ContextOff = "off"
)

// visible returns what a caller may see of a trace; nil for none.
func (w *Worker) visible(t *trace.Trace, superuser bool) *trace.Trace {
	switch {
	case t == nil, w.cfg.Context == ContextAll, w.cfg.Context != ContextOff && superuser:
		return t
	}
	return t.WithoutStatements()
}
