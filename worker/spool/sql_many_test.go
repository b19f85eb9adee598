package spool

import (
	"fmt"
	"reflect"
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
		s.work(t, "summary", "blocking", "functrace", "waits_trace", "waits_untrace")
		t.Run("no processes", s.testNoProcesses)
		t.Run("PIDs that are not positive", s.testNoPID)
		t.Run("settings", s.testSettings)
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
	c, notices := s.notices(t, s.User, "postgres")
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

// testSettings: the caller's settings do not change how figures and arrays pass between the extension's functions.
func (s *site) testSettings(t *testing.T) {
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
	} {
		t.Run(name, func(t *testing.T) {
			c := s.Connect(t, s.User, "postgres")
			run(t, c, "SET client_min_messages = error")
			for statement := range strings.SplitSeq(q.before, "; ") { // DISCARD ALL runs in no transaction block
				run(t, c, statement)
			}
			run(t, c, "SET client_min_messages = error; SET statement_timeout = '20s'")
			if got, err := query(t.Context(), c, "SELECT x::text FROM ("+q.call+") x (x)"); err != nil || got != q.want {
				t.Errorf("got %q, %v", got, describe(err))
			}
		})
	}
}
