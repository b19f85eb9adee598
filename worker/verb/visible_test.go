package verb

import (
	"strings"
	"testing"

	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/pg/memctx"
	"pg_stat_backtrace/worker/report/render"
)

func TestVisible(t *testing.T) {
	t.Parallel()
	full := &backtrace.Trace{Threads: []backtrace.Thread{{Whole: true, Frames: []backtrace.Frame{
		{Function: "f", Levels: []backtrace.Level{{Kind: backtrace.SPI, Text: `SQL statement "secret"`, Query: "secret"}}},
	}}}}
	for _, c := range []struct {
		context   string
		superuser bool
		shown     bool
	}{
		{"", true, true}, {"", false, false}, {ContextSuperuser, true, true}, {ContextSuperuser, false, false},
		{ContextAll, true, true}, {ContextAll, false, true}, {ContextOff, true, false}, {ContextOff, false, false},
	} {
		s := &Service{cfg: Config{Context: c.context}}
		text := render.Text(s.visible(full, c.superuser), render.Options{})
		if strings.Contains(text, "secret") != c.shown || !strings.Contains(text, "[SQL statement") {
			t.Errorf("--context=%s, superuser %v: %s", c.context, c.superuser, text)
		}
	}
	for _, c := range []struct {
		context          string
		superuser, shown bool
	}{
		{"", true, true}, {"", false, false}, {ContextSuperuser, false, false}, {ContextAll, false, true},
		{ContextOff, true, false},
	} {
		tree := &memctx.Tree{Contexts: []memctx.Context{
			{Name: "CachedPlanSource", Ident: "secret"}, {Name: "CachedPlan", Ident: "secret"},
			{Name: "index info", Ident: "i"},
		}}
		(&Service{cfg: Config{Context: c.context}}).hideStatements(tree, c.superuser)
		want := ""
		if c.shown {
			want = "secret"
		}
		if l := tree.Contexts; l[0].Ident != want || l[1].Ident != want || l[2].Ident != "i" {
			t.Errorf("--context=%s, superuser %v: %+v", c.context, c.superuser, l)
		}
	}
	if (&Service{}).visible(nil, false) != nil {
		t.Error("no trace became one")
	}
}
