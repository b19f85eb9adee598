package moment_test

import (
	"path/filepath"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/moment"
)

// TestFreshCoverage runs the mixed load, and judges the stacks that it has now. It counts each distinct stack once, without
// idle processes. A generic phrase does not count as one.
func TestFreshCoverage(t *testing.T) {
	if !pgtest.Full() {
		t.Skip("takes a minute for each server: only with PGSB_TEST_FULL")
	}
	const aim = 80 // percent
	*program = filepath.Join(t.TempDir(), "pg_stat_backtrace")
	if err := pgtest.BuildProgram(*program); err != nil {
		t.Fatal(err)
	}
	pgtest.Each(t, func(t *testing.T, binDir string) {
		set := &serverSets[0]
		server := pgtest.Start(t, binDir, set.options)
		execAll(t, server, strings.ReplaceAll(set.setup, ";", ";;"))
		all, covered, contradicted := 0, 0, 0
		for _, s := range set.situations {
			if s.name != "mixed" {
				continue
			}
			s.setup = strings.Join([]string{
				"CREATE TABLE hotc (id int, k int, grp int, txt text)", "CREATE TABLE insgp (w text[])",
				"CREATE INDEX ON insgp USING gin (w) WITH (fastupdate=on, gin_pending_list_limit=64)",
				"CREATE TABLE upd (id int PRIMARY KEY, n int, v text)",
				"INSERT INTO upd SELECT g, 0, 'x' FROM generate_series(1, 20000) g",
				"CREATE TABLE child (id int, p int REFERENCES small)",
				"CREATE MATERIALIZED VIEW mv AS SELECT id, md5(txt) m FROM big",
			}, ";;") // tables of other situations
			for stack := range recordOne(t, server, nil, s) {
				j := moment.Judge(server.Major, stack.backend, stack.waitType, stack.waitEvent, stack.stack)
				if j.Idle {
					continue
				}
				all++
				covered += b2i(j.Specific)
				contradicted += b2i(len(j.Contradictions) > 0)
				for _, c := range j.Contradictions {
					t.Errorf("%q: %s\n%s", j.Text, c, stack.stack)
				}
				if !j.Specific {
					t.Logf("no phrase: %s|%s|%s|%s", stack.backend, stack.waitType, stack.waitEvent, stack.stack)
				}
			}
		}
		figure.Printf(t, "PostgreSQL %d: %d of %d distinct stacks of the mixed load have a phrase (%.1f %%); %d contradictions",
			server.Major, covered, all, 100*float64(covered)/float64(max(1, all)), contradicted)
		if covered*100 < aim*all || all == 0 {
			t.Errorf("less than %d %%", aim)
		}
	})
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
