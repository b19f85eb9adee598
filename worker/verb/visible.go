package verb

import (
	"slices"

	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/pg/memctx"
)

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
func (s *Service) visible(t *backtrace.Trace, superuser bool) *backtrace.Trace {
	if t == nil || s.showsStatements(superuser) {
		return t
	}
	return t.WithoutStatements()
}

// showsStatements reports whether a caller may see the text of statements that functions run.
func (s *Service) showsStatements(superuser bool) bool {
	return s.cfg.Context == ContextAll || s.cfg.Context != ContextOff && superuser
}

// statementContexts are the memory contexts of plans, whose identifier is the text of the statement. A function may
// have prepared it.
var statementContexts = []string{"CachedPlan", "CachedPlanSource"}

// hideStatements removes these identifiers unless the caller may see them.
func (s *Service) hideStatements(tree *memctx.Tree, superuser bool) {
	if s.showsStatements(superuser) {
		return
	}
	for i := range tree.Contexts {
		if c := &tree.Contexts[i]; slices.Contains(statementContexts, c.Name) {
			c.Ident = ""
		}
	}
}
