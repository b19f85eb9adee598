package spool

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// Targets of requests for a table, with answers of their own.
const (
	askSometimes = 101  // every third answer is an error
	askEnded     = 1000 // the row has an error
)

// sampled is the number of requests for samples that the fake worker has answered.
var sampled atomic.Int64

// fakeRows is fakeAnswer for the requests whose answer is a table. The rows have the columns of backtrace.answer.
func fakeRows(r Request, fault Answer) Answer {
	switch r.Verb {
	case "summary":
		n := sampled.Add(1)
		if len(r.Targets) == 0 {
			r.Targets = []int{7} // the only process of this cluster
		}
		if r.Targets[0] == askError || r.Targets[0] == askSometimes && n%3 == 0 {
			return fault
		}
	case "blocking":
	case "functrace":
		return Answer{Rows: [][]string{{"done", ""}, {"1", r.Settings["trace"]}}}
	default:
		return Answer{}
	}
	var a Answer
	for _, pid := range r.Targets {
		row := []string{strconv.Itoa(pid), "", "stop", "1.5", "1", "stack " + strconv.Itoa(pid%2), "", "", ""}
		if pid == askEnded {
			row = []string{strconv.Itoa(pid), "", "", "", "", "", "ERROR", "55000", "process has exited"}
		}
		a.Rows = append(a.Rows, row)
	}
	return a
}

// TestSQLMany uses the functions about many processes.
func TestSQLMany(t *testing.T) {
	eachSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		t.Run("no processes, no worker", s.testNoProcesses)
		f := s.work(t, "summary", "blocking", "functrace", "waits_trace", "waits_untrace")
		t.Run("no processes", s.testNoProcesses)
		t.Run("PIDs that are not positive", s.testNoPID)
		t.Run("counts", s.testCounts)
		t.Run("a failed sample", s.testFailedSample)
		t.Run("settings", func(t *testing.T) { s.testSettings(t, f) }) // stops the worker
	})
}

// testNoProcesses: a summary of no processes has no rows, and needs no worker.
func (s *site) testNoProcesses(t *testing.T) {
	c := s.Connect(t, s.User, "postgres")
	for _, pids := range []string{"{}", "{NULL}", "{NULL,NULL}", "{{NULL}}"} {
		got, err := query(t.Context(), c, "SELECT count(*)::text FROM pg_backtrace_summary(1, '0', $1)", pids)
		if err != nil || got != "0" {
			t.Errorf("%s: %s rows, %v", pids, got, describe(err))
		}
	}
	for _, bad := range []string{"0, '0', '{}'", "1, '2 hours', '{}'"} {
		if got := fails(t, c, fmt.Sprintf("SELECT count(*)::text FROM pg_backtrace_summary(%s)", bad)); got[:5] != "22023" {
			t.Errorf("%s: %s", bad, got)
		}
	}
}

// testNoPID: a PID that is not positive is no process. It stands for nothing else.
func (s *site) testNoPID(t *testing.T) {
	c, notices := s.notices(t, s.User)
	for _, pid := range []string{"0", "-1", "-2147483648"} {
		for _, level := range []string{"trace", "off", "stats"} {
			sql := fmt.Sprintf("SELECT pg_wait_event_capture('%s', %s)::text", level, pid)
			if got, want := fails(t, c, sql), "22023|invalid PID "+pid+"||Leave it out to "; !strings.HasPrefix(got, want) {
				t.Errorf("%s: %s", sql, got)
			}
		}
		notices()
		got := text(t, c, fmt.Sprintf("SELECT count(*)::text FROM pg_get_blocking_backtraces(%s)", pid))
		want := []string{"WARNING 01000 PID " + pid + " is not a PostgreSQL server process"}
		if told := notices(); got != "0" || !reflect.DeepEqual(told, want) {
			t.Errorf("blocking backtraces of PID %s: %s rows, notices %q", pid, got, told)
		}
	}
}

// summarize is a query of the whole result of a summary, in one text.
func summarize(arguments string) string {
	return "SELECT string_agg(s::text, ' ' ORDER BY s.n) FROM (SELECT s.*, row_number() OVER () AS n " +
		"FROM pg_backtrace_summary(" + arguments + ") s) s"
}

// without leaves out the notices that contain word: a summary on a slow machine reports progress.
func without(notices []string, word string) []string {
	return slices.DeleteFunc(notices, func(n string) bool { return strings.Contains(n, word) })
}

// testCounts checks the figures of a summary.
func (s *site) testCounts(t *testing.T) {
	c, notices := s.notices(t, s.User)
	got := text(t, c, summarize("40, '0', ARRAY[1000, 111, 103, 105, 107, 113, 109, 102, 1000]"))
	const want = `(240,85.7,6,"{103,105,107,109,111}","stack 1",1) (40,14.3,1,{102},"stack 0",2)`
	told := without(notices(), " sample ")
	if got != want || !reflect.DeepEqual(told, []string{"NOTICE 00000 80 of 360 stacks could not be taken"}) {
		t.Errorf("got %s, notices %q", got, told)
	}
	if got := text(t, c, summarize("3, '0', ARRAY[1000]")); got != "NULL" {
		t.Errorf("without a stack: %s", got)
	}
}

// testFailedSample: an error after the first sample leaves what was counted. A cancel ends the call.
func (s *site) testFailedSample(t *testing.T) {
	c, notices := s.notices(t, s.User)
	got := fails(t, c, summarize(fmt.Sprintf("3, '0', ARRAY[%d]", askError)))
	if got != "42501|message 100% '|Detail.|Hint." {
		t.Errorf("an error of the first sample: %s", got)
	}
	sometimes := summarize(fmt.Sprintf("5, '0', ARRAY[%d, 102]", askSometimes))
	_, _ = query(t.Context(), c, sometimes) // it ends with an error, and two samples follow
	notices()
	for range 2 {
		got, err := query(t.Context(), c, sometimes)
		const want = `(2,50.0,1,{102},"stack 0",1) (2,50.0,1,{101},"stack 1",2)`
		const notice = "NOTICE 00000 sampling ended after 2 of 5 samples: message 100% '"
		if told := without(notices(), " sample "); got != want || !reflect.DeepEqual(told, []string{notice}) {
			t.Errorf("got %s, %v, notices %q", got, describe(err), told)
		}
	}
	run(t, c, "SET statement_timeout = 300")
	if got := fails(t, c, summarize("5, '10 s', ARRAY[103]")); !strings.HasPrefix(got, "57014|") {
		t.Errorf("canceled: %s", got)
	}
}

// testSettings: the caller's settings do not change how figures and arrays pass between the extension's functions.
func (s *site) testSettings(t *testing.T, f *fake) {
	for name, q := range map[string]struct{ before, call, want string }{
		"quoted since a call": {
			call100 + "; SET quote_all_identifiers = on", call100, "#0 get 100",
		},
		"not quoted any more": {
			"SET quote_all_identifiers = on; " + call100 + "; DISCARD ALL", call100, "#0 get 100",
		},
		"quoted since a request": {
			"SELECT pg_request_backtrace(100); SET quote_all_identifiers = on", "SELECT (pg_request_backtrace(100) > 0)::text",
			"true",
		},
		"a request, not quoted any more": {
			"SET quote_all_identifiers = on; SELECT pg_request_backtrace(100); DISCARD ALL",
			"SELECT (pg_request_backtrace(100) > 0)::text", "true",
		},
		"one digit": {
			"SET extra_float_digits = -15", fmt.Sprintf("SELECT pg_get_backtrace(%d)", askLonger),
			fmt.Sprintf("#0 get %d", askLonger),
		},
		"one digit, a time": {
			"SET extra_float_digits = -15", "SELECT stack FROM pg_trace_function('f', 100, '12.345 s')", "12345 f",
		},
		"no NULLs": {
			"SET array_nulls = off", "SELECT (pg_request_backtrace(ARRAY[100, 0]))[2] IS NULL", "true",
		},
		"no NULLs, one": {
			"SET array_nulls = off", "SELECT pg_request_backtrace(0) IS NULL", "true",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := s.Connect(t, s.User, "postgres")
			run(t, c, "SET client_min_messages = error")
			for statement := range strings.SplitSeq(q.before, "; ") { // DISCARD ALL runs in no transaction block
				run(t, c, statement)
			}
			run(t, c, "SET client_min_messages = error; SET statement_timeout = '180s'")
			if got, err := query(t.Context(), c, "SELECT x::text FROM ("+q.call+") x (x)"); err != nil || got != q.want {
				t.Errorf("got %q, %v", got, describe(err))
			}
		})
	}
	// A call that gets no answer ends.
	c := s.Connect(t, s.User, "postgres")
	run(t, c, "SET extra_float_digits = -15; SET pg_stat_backtrace.timeout = 200; SET statement_timeout = '180s'")
	pgtest.Suspend(t, f.Process)
	got := fails(t, c, call100)
	if !strings.HasPrefix(got, "55000|the pg_stat_backtrace worker did not answer within 200 ms||") {
		t.Errorf("without an answer: %s", got)
	}
}
