package worker

import (
	"strings"
	"testing"

	"pg_stat_backtrace/worker/pgmemory"
	"pg_stat_backtrace/worker/render"
	"pg_stat_backtrace/worker/trace"
)

func TestVisible(t *testing.T) {
	t.Parallel()
	full := &trace.Trace{Threads: []trace.Thread{{Whole: true, Frames: []trace.Frame{
		{Function: "f", Levels: []trace.Level{{Kind: trace.SPI, Text: `SQL statement "secret"`, Query: "secret"}}},
	}}}}
	for _, c := range []struct {
		context   string
		superuser bool
		shown     bool
	}{
		{"", true, true}, {"", false, false}, {ContextSuperuser, true, true}, {ContextSuperuser, false, false},
		{ContextAll, true, true}, {ContextAll, false, true}, {ContextOff, true, false}, {ContextOff, false, false},
	} {
		w := &Worker{cfg: Config{Context: c.context}}
		text := render.Text(w.visible(full, c.superuser), render.Options{})
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
		tree := &pgmemory.Tree{Contexts: []pgmemory.Context{
			{Name: "CachedPlanSource", Ident: "secret"}, {Name: "CachedPlan", Ident: "secret"},
			{Name: "index info", Ident: "i"},
		}}
		(&Worker{cfg: Config{Context: c.context}}).hideStatements(tree, c.superuser)
		want := ""
		if c.shown {
			want = "secret"
		}
		if l := tree.Contexts; l[0].Ident != want || l[1].Ident != want || l[2].Ident != "i" {
			t.Errorf("--context=%s, superuser %v: %+v", c.context, c.superuser, l)
		}
	}
	if (&Worker{}).visible(nil, false) != nil {
		t.Error("no trace became one")
	}
}
