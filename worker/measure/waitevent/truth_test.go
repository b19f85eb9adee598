package waitevent

import (
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/waits"
)

// TestManyTranches: a process that waits for the LWLocks of 600 tranches has figures of the first ones. The other waits
// are counted as overflow, and the text shows them.
func TestManyTranches(t *testing.T) {
	const lwlock = 1
	dir := t.TempDir()
	library := filepath.Join(dir, "tranches.so")
	out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", library, "testdata/tranches.c", "-ldl").CombinedOutput()
	if err != nil {
		t.Skipf("no library for the server: %v\n%s", err, out)
	}
	for parent := dir; parent != "/" && parent != "."; parent = filepath.Dir(parent) {
		_ = exec.Command("chmod", "a+x", parent).Run() // the server's user loads the library
	}
	bins := pgtest.BinDirs(t)
	for _, method := range []waits.Method{waits.Blocked, waits.Exact} {
		t.Run(string(method), func(t *testing.T) {
			w := watch(t, bins[len(bins)-1], pgtest.Options{Env: []string{"LD_PRELOAD=" + library}},
				waits.Options{Method: method})
			c := w.server.Connect(t, "postgres", "postgres")
			const sleeps = 1200
			_, err := c.Exec(t.Context(), fmt.Sprintf(
				"DO $$ BEGIN FOR i IN 1..%d LOOP PERFORM pg_sleep(0.001); END LOOP; END $$", sleeps))
			if err != nil {
				t.Fatal(err)
			}
			s, err := w.provider.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			var calls, events, overflow uint64
			for _, p := range s.Processes {
				if p.PID != int(c.PgConn().PID()) {
					continue
				}
				overflow = p.Overflow
				for _, e := range p.Events {
					if e.ID>>24 == lwlock {
						events++
						calls += e.Calls
					}
				}
			}
			// Something else can wake the session up, and it sleeps again. On a busy machine the time can be over before.
			if n := calls + overflow; n < sleeps*95/100 || n > sleeps*11/10 || events < 50 || events > 64 {
				t.Errorf("%d waits for %d events, and overflow of %d", calls, events, overflow)
			}
			if s.Lost.Overflow != overflow {
				t.Errorf("the overflow of all is %d, of the process %d", s.Lost.Overflow, overflow)
			}
			var text strings.Builder
			report := w.NewReport(w.provider.Info(), s, func(int) string { return "" }, nil)
			if err := report.Text(&text, true, 0); err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprintf("Missing: %d waits of processes that waited for more than 64 events", overflow)
			if overflow == 0 || !strings.Contains(text.String(), want) {
				t.Errorf("no %q in\n%.2000s", want, text.String())
			}
		})
	}
}

// TestDataFileRead compares the number of waits for reads of data files with the blocks that the server itself counts.
func TestDataFileRead(t *testing.T) {
	bins := pgtest.BinDirs(t)
	for _, bin := range slices.Compact([]string{bins[0], bins[len(bins)-1]}) {
		t.Run(pgtest.Version(t, bin), func(t *testing.T) { compareReads(t, bin) })
	}
}

func compareReads(t *testing.T, bin string) {
	t.Helper()
	conf := []string{"shared_buffers = 1MB", "autovacuum = off", "effective_io_concurrency = 0"}
	counted := "SELECT sum(blks_read)::bigint FROM pg_stat_database"
	if major := pgtest.Major(t, bin); major >= 16 {
		counted = "SELECT sum(reads)::bigint FROM pg_stat_io WHERE object IN ('relation', 'temp relation')"
		if major >= 17 {
			conf = append(conf, "io_combine_limit = 8kB") // a read of several blocks is one wait
		}
		if major >= 18 {
			conf = append(conf, "io_method = sync") // the other methods read elsewhere
		}
	}
	w := watch(t, bin, pgtest.Options{Conf: conf}, waits.Options{Method: waits.Exact})
	c := w.server.Connect(t, "postgres", "postgres")
	for _, sql := range []string{
		"CREATE TABLE t AS SELECT repeat('x', 2000) FROM generate_series(1, 20000)", "CHECKPOINT",
	} {
		if _, err := c.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	look := w.server.Connect(t, "postgres", "postgres")
	if err := c.Close(t.Context()); err != nil { // the session reports its figures at the latest then
		t.Fatal(err)
	}
	quiet, same := int64(-1), 0
	pgtest.Wait(t, "the server's figures of the time before", func() bool {
		now := number[int64](t, look, counted)
		if same++; now != quiet {
			same = 0
		}
		quiet = now
		_ = number[int64](t, look, "SELECT 1 FROM pg_sleep(0.3)") // 14 reports twice a second
		return same >= 4
	})
	c = w.server.Connect(t, "postgres", "postgres")
	if err := w.provider.ResetAll(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Exec(t.Context(), "SELECT count(*) FROM t"); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var calls, blocks int64
	defer func() { t.Logf("%d waits, %d blocks", calls, blocks) }()
	pgtest.Wait(t, "equal figures", func() bool {
		blocks = number[int64](t, look, counted) - quiet
		calls = int64(w.totals(t)["IO/DataFileRead"].Calls)
		return blocks > 4000 && math.Abs(float64(calls-blocks)) <= 0.005*float64(blocks)
	})
}
