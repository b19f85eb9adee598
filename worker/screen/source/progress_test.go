package source

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/pg/plan"
)

// TestVacuumInThePlan: the plan of a session that runs VACUUM has the phase and the blocks of the command. Here, VACUUM waits until a
// cursor leaves a page.
func TestVacuumInThePlan(t *testing.T) {
	pgtest.One(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{Conf: []string{"autovacuum = off"}})
		s.Exec(t, "CREATE TABLE held AS SELECT generate_series(1, 100000) n")
		holder, vacuum := s.Connect(t, s.User, "postgres"), s.Connect(t, s.User, "postgres")
		if _, err := holder.Exec(t.Context(), "BEGIN; DECLARE c CURSOR FOR SELECT * FROM held; FETCH 1 FROM c"); err != nil {
			t.Fatal(err)
		}
		s.Exec(t, "DELETE FROM held WHERE n < 1000")
		var blocks int
		if err := holder.QueryRow(t.Context(), "SELECT pg_relation_size('held') / 8192").Scan(&blocks); err != nil {
			t.Fatal(err)
		}
		pid := int(vacuum.PgConn().PID())
		go func() { _, _ = vacuum.PgConn().Exec(t.Context(), "VACUUM FREEZE held").ReadAll() }()
		capturer, err := capture.New(capture.Config{})
		if err != nil {
			t.Fatal(err)
		}
		var l *Live
		pgtest.Wait(t, "the server's program", func() bool { // a slow disk gives it late
			if l, err = NewLive(Options{DataDir: s.DataDir, Capturer: capturer}); err != nil && !strings.Contains(err.Error(), "in time") {
				t.Fatal(err)
			}
			return err == nil
		})
		var p *Plan
		pgtest.Wait(t, "a waiting VACUUM", func() bool {
			if err := l.Sample(); err != nil {
				t.Fatal(err)
			}
			x, err := l.Session(t.Context(), pid, Span{time.Now().Add(-time.Minute), time.Now()})
			return err == nil && x.Now != nil && x.Now.Wait != nil && x.Now.Wait.Type == BufferPin
		})
		pgtest.Wait(t, "the plan", func() bool { // a slow disk gives the server's program late
			if p, err = l.Plan(t.Context(), pid); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			return err == nil && p.Progress != nil
		})
		if x := p.Progress; !strings.HasPrefix(x.Text, "VACUUM on held: scanning heap, ") || !strings.HasSuffix(x.Text, fmt.Sprintf(" of %d blocks", blocks)) ||
			x.View != "pg_stat_progress_vacuum" || len(x.Columns) < 6 || x.Columns[1] != (ProgressColumn{"heap_blks_total", strconv.Itoa(blocks)}) ||
			time.Since(x.Time) > time.Minute {
			t.Errorf("%+v", x)
		}
		if p, err = l.Plan(t.Context(), int(holder.PgConn().PID())); err == nil && p.Progress != nil {
			t.Errorf("the holder: %+v", p.Progress)
		}
	})
}

// TestProgressText: the text has the phase and its figures, with their unit.
func TestProgressText(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]*plan.CommandReport{
		"VACUUM on relation 7: vacuuming heap, 3 of 10 blocks": {Command: "VACUUM", TargetOID: 7, Columns: []plan.CommandColumn{
			{Name: "phase", Value: "vacuuming heap"}, {Name: "heap_blks_total", Value: int64(10)}, {Name: "heap_blks_scanned", Value: int64(10)},
			{Name: "heap_blks_vacuumed", Value: int64(3)},
		}},
		"VACUUM on t: vacuuming indexes, 0 of 1 index": {Command: "VACUUM", TargetOID: 7, Target: "t", Columns: []plan.CommandColumn{
			{Name: "phase", Value: "vacuuming indexes"}, {Name: "heap_blks_total", Value: int64(10)}, {Name: "indexes_total", Value: int64(1)},
		}},
		"VACUUM: initializing": {Command: "VACUUM", Columns: []plan.CommandColumn{
			{Name: "phase", Value: "initializing"}, {Name: "delay_time", Value: 2.5},
		}},
		"COPY FROM, 20 kB of 1024 kB": {Command: "COPY FROM", Columns: []plan.CommandColumn{
			{Name: "command", Value: "COPY FROM"}, {Name: "bytes_processed", Value: int64(20 << 10)}, {Name: "bytes_total", Value: int64(1 << 20)},
		}},
		"CREATE INDEX: building index, 5 of 9 rows": {Command: "CREATE INDEX", Columns: []plan.CommandColumn{
			{Name: "phase", Value: "building index"}, {Name: "tuples_total", Value: int64(9)}, {Name: "tuples_done", Value: int64(5)},
		}},
	} {
		if got := progressOf(r, noon); got.Text != want || len(got.Columns) > len(r.Columns) ||
			r.Columns[len(r.Columns)-1].Name == "delay_time" && got.Columns[1].Value != "2.5 ms" {
			t.Errorf("%+v, want %q", got, want)
		}
	}
}
