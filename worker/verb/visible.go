package verb

import (
	"slices"

	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/pg/memctx"
)

// The values of Config.Context. It decides which roles see the text of statements that functions run. Such a text
// belongs to the owner of the function, often a SECURITY DEFINER function, and may contain data that the role of the
// session must not see.
const (
	// ContextSuperuser shows the text to superusers only.
	ContextSuperuser = "superuser"
	// ContextAll shows the text to every role that may see the stack. Stored results do not contain the text, because
	// other roles can read them.
	ContextAll = "all"
	// ContextOff hides the text from every role.
	ContextOff = "off"
)

// visible returns the trace, without the text of statements if the caller may not see it. For nil it returns nil.
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

// statementContexts are the names of the memory contexts of plans. Their identifier (memctx Ident) is the text of the
// statement, which a function may have prepared.
var statementContexts = []string{"CachedPlan", "CachedPlanSource"}

// hideStatements removes the identifiers of statementContexts unless the caller may see the text of statements.
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
