package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/internal/pgtest"
)

// TestTraceFunction: superusers count the calls of a function by SQL, if the worker's options allow it.
func TestTraceFunction(t *testing.T) {
	bin := pgtest.BinDir(t)
	s := start(t, bin, pgtest.Options{})
	s.work(t)
	boss := s.connect(t, s.User, "postgres")
	boss.run(t, "CREATE ROLE stranger LOGIN; CREATE ROLE granted LOGIN; "+
		"GRANT EXECUTE ON FUNCTION pg_trace_function TO granted")
	_, e := boss.try(t.Context(), "SELECT pg_trace_function('pg_sleep', 0, '1 s')")
	if e.state != "55000" || !strings.Contains(e.detail, "--trace-functions") {
		t.Errorf("a worker without the option: %+v", e)
	}
	_, e = boss.try(t.Context(), "SELECT pg_trace_function(repeat('x', 1000000), 0)")
	if e.state != "22023" || !strings.Contains(e.message, "name of a function to trace may have at most 1000") {
		t.Errorf("a long name: %+v", e)
	}
	if os.Getuid() != 0 {
		t.Skip("only root may load programs into the kernel")
	}
	if err := s.worker.end(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(programs.worker, s.workerArguments([]string{"--trace-functions"})...)
	command.SysProcAttr = &syscall.SysProcAttr{}
	s.worker = s.launch(t, command)
	s.ready(t, s.worker)

	target := s.connect(t, s.User, "postgres")
	pid := target.pid()
	const n = 20
	var got [][2]string
	for traces, duration := 1, 3*time.Second; ; traces, duration = traces+1, 2*duration {
		rows, asked := make(chan [][2]string, 1), time.Now()
		go func() { rows <- traceRows(t, boss, "pg_backend_pid", pid, duration.String()) }()
		pgtest.Wait(t, "the start of the trace", func() bool {
			return strings.Count(s.worker.text(), "tracing a function") == traces
		})
		for range n {
			target.run(t, "SELECT pg_backend_pid()")
		}
		late := time.Since(asked) >= duration // a busy machine: the trace may have ended before the last call
		got = <-rows
		if !late || duration > pgtest.Patience {
			break
		}
	}
	if len(got) != 1 || got[0][0] != strconv.Itoa(n) || !strings.HasPrefix(got[0][1], "pg_backend_pid\n") ||
		!strings.Contains(got[0][1], "\nPostgresMain\n") {
		t.Errorf("rows of %d calls: %q", n, got)
	}
	// All processes of the server, and no call.
	if got := traceRows(t, boss, "FreeBulkInsertState", 0, "100 ms"); len(got) != 0 {
		t.Errorf("rows of a function that is not called: %q", got)
	}
	refused(t, s.connect(t, "stranger", "postgres"), "42501", "SELECT pg_trace_function('pg_sleep', 0, '1 s')")
	refused(t, s.connect(t, "granted", "postgres"), "42501", "SELECT pg_trace_function('pg_sleep', 0, '1 s')")
	refused(t, boss, "22023", "SELECT pg_trace_function('no_such_function', 0, '1 s')")
	refused(t, boss, "22023", "SELECT pg_trace_function('libc:malloc', 0, '1 s')")
	refused(t, boss, "22023", "SELECT pg_trace_function('pg_sleep', 0, '2 hours')")
	boss.told()
	boss.run(t, "SELECT pg_trace_function('pg_sleep', 1, '1 s')")
	if notices := boss.told(); len(notices) != 1 || !strings.Contains(notices[0].message, "is not a PostgreSQL") {
		t.Errorf("no process: %v", notices)
	}
	endAfterCancel(t, s, pid)
}

// endAfterCancel: after a cancel the worker removes the probe.
func endAfterCancel(t *testing.T, s *site, pid int) {
	t.Helper()
	c := s.connect(t, s.User, "postgres")
	c.run(t, "SET statement_timeout = '1 s'")
	refused(t, c, "57014", fmt.Sprintf("SELECT pg_trace_function('pg_sleep', %d, '10 min')", pid))
	if got := c.text(t, "SELECT coalesce(current_setting('pg_stat_backtrace.trace', true), '')"); got != "" {
		t.Errorf("the setting is left over: %q", got)
	}
	boss := s.connect(t, s.User, "postgres")
	// There is room for four traces, and the canceled one gives its room back.
	until := time.Now().Add(2 * time.Minute)
	for range 5 {
		for {
			_, e := boss.try(t.Context(), "SELECT count(*) FROM pg_trace_function('pg_sleep', 0, '10 ms')")
			if e.state == "" {
				break
			}
			if e.state != "53400" || time.Now().After(until) {
				t.Fatalf("a trace after a cancel: %+v", e)
			}
			time.Sleep(time.Second)
		}
	}
}

// traceRows runs pg_trace_function.
func traceRows(t *testing.T, c *session, name string, pid int, duration string) (list [][2]string) {
	t.Helper()
	rows, err := c.Query(t.Context(), `SELECT count::text, coalesce(stack, '')
		FROM pg_trace_function($1, $2, $3::text::interval)`, name, pid, duration)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer rows.Close()
	for rows.Next() {
		var row [2]string
		if err := rows.Scan(&row[0], &row[1]); err != nil {
			t.Error(err)
		}
		list = append(list, row)
	}
	if err := rows.Err(); err != nil {
		var e *pgconn.PgError
		if errors.As(err, &e) && strings.Contains(e.Detail, "kernel") {
			t.Skipf("this kernel takes no programs: %s", e.Detail)
		}
		t.Error(err)
	}
	return list
}
