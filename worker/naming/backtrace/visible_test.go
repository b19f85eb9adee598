package backtrace_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pg_stat_backtrace/worker/naming/backtrace"
)

func TestWithoutStatements(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	full := func() *backtrace.Trace {
		return &backtrace.Trace{Query: "SELECT f()", Threads: []backtrace.Thread{{Frames: []backtrace.Frame{
			{Function: "a", Levels: []backtrace.Level{
				{Kind: backtrace.PLpgSQL, Text: "PL/pgSQL function f() line 3 at EXECUTE", Function: "f()"},
				{Kind: backtrace.SPI, Text: `SQL statement "ALTER ROLE x '` + secret + `'"`, Query: "ALTER " + secret, Cut: true},
			}},
			{Function: "b"},
			{Function: "c", Levels: []backtrace.Level{
				{Kind: backtrace.SPI, Text: `PL/pgSQL assignment "a := '` + secret + `'"`, Query: secret},
			}},
		}}}}
	}
	given := full()
	got := given.WithoutStatements()
	if !reflect.DeepEqual(given, full()) {
		t.Error("the trace itself was changed")
	}
	text := fmt.Sprintf("%+v", *got)
	for _, want := range []string{
		"line 3 at EXECUTE", "SELECT f()", "{Kind:statement Text:SQL statement ", "PL/pgSQL assignment",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %s", want, text)
		}
	}
	if strings.Contains(text, secret) {
		t.Error(text)
	}
	if plain := got.WithoutStatements(); plain != got {
		t.Error("a trace without such text was copied")
	}
}
