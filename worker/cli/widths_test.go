package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/report/table"
)

// TestTablesFitTerminal prints the tables of commands on terminals of several widths. No line of a table is wider than the
// terminal, and --wide or a pipe have every column.
func TestTablesFitTerminal(t *testing.T) {
	s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{Conf: []string{"autovacuum = off"}})
	s.Exec(t, "CREATE TABLE t AS SELECT 1 n")
	holder, waiter := s.Connect(t, s.User, "postgres"), s.Connect(t, s.User, "postgres")
	execute(t, holder, "SET application_name = 'an application with a long name'; BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
	go func() {
		_, _ = waiter.PgConn().Exec(t.Context(), "SELECT n FROM t /* "+strings.Repeat("some words ", 30)+"*/").ReadAll()
	}()
	pgtest.Wait(t, "a waiter", func() bool { return strings.Contains(activity(t, "-D", s.DataDir), "Lock:relation") })
	dir, since := recordedChain(t)
	span := []string{"--record-dir", dir, "--since", since.Format(time.RFC3339), "--until", since.Add(31 * time.Second).Format(time.RFC3339)}
	history := func(words ...string) []string { return append(append([]string{"history"}, span...), words...) }
	for name, c := range map[string]struct {
		words []string
		// has are texts that the table has at each width, and wide are texts that it has without a limit of the width.
		has, wide []string
		// notes are the beginnings of lines that are no part of the table.
		notes []string
		// whole is set if the command has no --wide, because the table has every column on each terminal.
		whole bool
	}{
		"history": {
			words: history(), has: []string{"from ", " 10 ", "ALTER TABLE", "not recorded"},
			wide:  []string{" to ", "app@shop", "IO:DataFileRead 50 %, no wait 50 %", "10 AccessExclusiveLock relation orders", "scans orders 50 %"},
			notes: []string{"cluster ", "left out: ", "10 sweeps"},
		},
		"history each sweep": {
			words: history("--each-sweep"), has: []string{"10 ", "ALTER TABLE"},
			wide:  []string{"app@shop", "transaction 12 min", "blocked by 10 AccessExclusiveLock relation orders"},
			notes: []string{"cluster ", "left out: ", "10 sweeps"},
		},
		"history totals": {
			words: history("--by", "wait,user,database,application,state,query,phrase,blocker"), has: []string{"seconds", "average", "wait"},
			wide:  []string{"blocker", "10 reporting (client backend, app, idle in transaction)", "SELECT * FROM orders"},
			notes: []string{"cluster ", "left out: ", "10 sweeps"},
		},
		"memory": {
			words: []string{"memory", "-D", s.DataDir}, has: []string{"pid", "memory", "kB", "SELECT n FROM t", "checkpointer"},
			wide:  []string{"backend_type", "swapped", "in_contexts", "largest contexts", "an application with a long name"},
			notes: []string{s.DataDir},
		},
		"rules": {
			words: []string{"rules", "list"}, has: []string{"lock_wait", "meaning"}, wide: []string{"lock_wait", "incident"},
			notes: []string{"cool-down"}, whole: true,
		},
		"symbols": {
			words: []string{"symbols", fmt.Sprint(holder.PgConn().PID())}, has: []string{"IMAGE", "postgres", "FROM"},
			wide:  []string{"BUILD-ID", "LINES"},
			notes: []string{"process ", "    "},
		},
		"waits": {
			words: []string{"waits", "-D", s.DataDir, "--method", "sampled", "--duration", "100ms"}, has: []string{"EVENT", "TOTAL", "SHARE"},
			wide:  []string{"AVERAGE"},
			notes: []string{"Method ", "Not used", "SHARE ", "Missing"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, columns := range []int{80, 100, 120} {
				out := onTerminal(t, uint16(columns), c.words...)
				for line := range strings.Lines(out) {
					line = strings.TrimSuffix(line, "\n")
					note := strings.HasPrefix(line, "no room for ") || strings.Contains(line, "-- ")
					for _, start := range c.notes {
						note = note || strings.HasPrefix(line, start)
					}
					if line == "" {
						break // advice follows
					}
					if !note && table.Width(line) > columns {
						t.Errorf("%d columns: a line of %d\n%s", columns, table.Width(line), line)
					}
				}
				for _, text := range c.has {
					if !strings.Contains(out, text) {
						t.Errorf("%d columns: no %q in\n%s", columns, text, out)
					}
				}
				if columns == 80 {
					t.Logf("\n%s", out)
				}
			}
			wide := c.words
			if !c.whole {
				wide = append(c.words[:len(c.words):len(c.words)], "--wide")
			}
			if out := onTerminal(t, 80, wide...); !c.whole && strings.Contains(out, "no room for ") {
				t.Errorf("--wide:\n%s", out)
			} else if !c.whole {
				for _, text := range append(c.has, c.wide...) {
					if !strings.Contains(out, text) {
						t.Errorf("--wide: no %q in\n%s", text, out)
					}
				}
			}
			status, pipe, stderr := run(t, c.words...)
			if status != exitOK {
				t.Fatalf("%d, %s", status, stderr)
			}
			for _, text := range append(c.has, c.wide...) {
				if !strings.Contains(pipe, text) {
					t.Errorf("in a pipe: no %q in\n%s", text, pipe)
				}
			}
		})
	}
}
