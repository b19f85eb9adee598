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

// TestWithoutNames fills every text of a trace: what remains are functions, modules and facts about the capture.
func TestWithoutNames(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	full := &backtrace.Trace{
		PID: 7, Query: secret, QueryCut: true, QueryFrame: 1, Wait: backtrace.Wait{Class: "Lock", Event: "tuple"},
		Session:    &backtrace.Session{Title: secret, Type: secret, Database: secret, User: secret, State: secret, Mode: secret, Holder: secret},
		Goroutines: []backtrace.Goroutine{{Creator: secret}}, Go: secret,
		Threads: []backtrace.Thread{{TID: 7, Name: secret, Frames: []backtrace.Frame{
			{Function: secret, Module: "[anon]", Address: 0x7001, Offset: 1, Note: secret, File: secret, Line: 1},
			{Function: "WaitOnLock", ModuleOffset: 1, Levels: []backtrace.Level{
				{Kind: backtrace.PLpgSQL, Text: secret, Function: secret},
				{Kind: backtrace.SPI, Text: secret, Query: secret},
				{Kind: backtrace.Tuple, Text: secret, Relation: secret},
			}},
			{Function: "PostgresMain", BuildID: "01", ModuleOffset: 2},
		}}},
	}
	before := fmt.Sprintf("%+v", full.Threads)
	got := full.WithoutNames()
	if fmt.Sprintf("%+v", full.Threads) != before {
		t.Error("the trace itself was changed")
	}
	text := fmt.Sprintf("%+v", *got)
	if strings.Contains(text, secret) || !strings.Contains(text, "WaitOnLock") || !strings.Contains(text, "tuple") {
		t.Error(text)
	}
}
