package capture_test

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

func observe(t *testing.T, pid int, o capture.Options) *backtrace.Trace {
	t.Helper()
	c, err := observer()
	if err != nil {
		t.Fatal(err)
	}
	if o.Deadline == 0 {
		o.Deadline = pgtest.Patience
	}
	tr, err := c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, o)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// observer returns the capturer of observe, which keeps the names of the servers' functions. A busy machine must not leave
// out levels.
var observer = sync.OnceValues(func() (*capture.Capturer, error) {
	return capture.New(capture.Config{LinesWait: time.Minute})
})

// TestQueries checks the text of a query: long ones are cut, and those of databases in other encodings escaped.
func TestQueries(t *testing.T) {
	long := "SELECT pg_sleep(60) /* " + strings.Repeat("ä", 1500) + " */"
	pgtest.Each(t, func(t *testing.T, binDir string) {
		server := pgtest.Lend(t, binDir, pgtest.Options{})
		server.Exec(t, "CREATE DATABASE latin ENCODING LATIN1 TEMPLATE template0")
		server.Exec(t, "CREATE DATABASE unseen")
		server.Exec(t, "ALTER DATABASE unseen SET track_activities = off")
		for _, tt := range []struct {
			database, query, want string
			cut                   bool
		}{
			{"postgres", "SELECT 'ö', pg_sleep(60)", "SELECT 'ö', pg_sleep(60)", false},
			{"postgres", long, long[:maxQuery-1], true}, // the last byte would be half a character
			{"latin", "SELECT 'ö', pg_sleep(60)", `SELECT '\xc3\xb6', pg_sleep(60)`, false},
			{"unseen", "SELECT pg_sleep(60)", "", false}, // pg_stat_activity does not show it either
		} {
			conn := server.Connect(t, server.User, tt.database)
			pid := int(conn.PgConn().PID())
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = conn.Exec(ctx, tt.query) // until it is cancelled
			}()
			pgtest.Wait(t, "the query to sleep", func() bool {
				return observe(t, pid, capture.Options{}).Wait.Event == "PgSleep"
			})
			tr := observe(t, pid, capture.Options{})
			if tr.Query != tt.want || tr.QueryCut != tt.cut {
				t.Errorf("query %q, cut %t; want %q", tr.Query, tr.QueryCut, tt.want)
			}
			at := []string{"exec_execute_message", "PostgresMain", "exec_simple_query"}
			if f := tr.Threads[0].Frames[tr.QueryFrame].Function; tt.want != "" && !slices.Contains(at, f) {
				t.Errorf("the query stands at %q", f)
			}
			tr = observe(t, pid, capture.Options{NoContext: true})
			if tr.Query != "" || tr.Wait != (backtrace.Wait{}) {
				t.Errorf("asked not to: query %q, %v", tr.Query, tr.Wait)
			}
			cancel()
			<-done
		}
	})
}

// maxQuery is how much of a query's text is read.
const maxQuery = 1024

// TestEveryProcess compares the wait events of a server's processes that are at rest with pg_stat_activity.
func TestEveryProcess(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, binDir string) {
		server := pgtest.Lend(t, binDir, pgtest.Options{})
		conn := server.Connect(t, server.User, "postgres")
		idle := server.Connect(t, server.User, "postgres")
		read := func() map[int]backtrace.Wait {
			rows, err := conn.Query(t.Context(), `SELECT pid, coalesce(wait_event_type, ''), coalesce(wait_event, '')
				FROM pg_stat_activity WHERE pid <> pg_backend_pid()`)
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			out := make(map[int]backtrace.Wait)
			for rows.Next() {
				var pid int
				var w backtrace.Wait
				if err := rows.Scan(&pid, &w.Class, &w.Event); err != nil {
					t.Fatal(err)
				}
				out[pid] = w
			}
			return out
		}
		c := capturer(t)
		compared := 0
		pgtest.Wait(t, "the processes to rest", func() bool {
			compared = 0
			before := read()
			got, queries := make(map[int]backtrace.Wait), make(map[int]string)
			for pid := range before {
				tr, err := c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, capture.Options{Deadline: pgtest.Patience})
				if errors.Is(err, process.ErrExited) {
					continue // autovacuum looks round
				}
				if err != nil {
					t.Fatal(err)
				}
				got[pid], queries[pid] = tr.Wait, tr.Query
			}
			after := read()
			for pid, w := range got {
				if before[pid] == after[pid] {
					if w != after[pid] {
						return false // a stop wakes a process, which then goes back to rest
					}
					if queries[pid] != "" {
						t.Errorf("process %d at rest has the query %q", pid, queries[pid])
					}
					compared++
				}
			}
			return compared >= 4
		})
		want := backtrace.Wait{Class: "Client", Event: "ClientRead"}
		if got := observe(t, int(idle.PgConn().PID()), capture.Options{}).Wait; got != want {
			t.Errorf("an idle backend waits for %v", got)
		}
		figure.Printf(t, "%d processes compared", compared)
	})
}

// TestOtherProgram checks that another program has none of it.
func TestOtherProgram(t *testing.T) {
	sleep := exec.CommandContext(t.Context(), "sleep", "60")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = sleep.Process.Kill()
		_ = sleep.Wait()
	}()
	tr := observe(t, sleep.Process.Pid, capture.Options{})
	if tr.Query != "" || tr.Wait != (backtrace.Wait{}) || len(tr.Threads[0].Frames) == 0 {
		t.Errorf("trace %+v", tr)
	}
}
