package recorder

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/plan"
)

// TestPlansWanted has the sessions whose plans are read: active ones that execute a plan for some time, with a text.
func TestPlansWanted(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	old, executing := now.Add(-time.Hour).UnixMicro(), []string{"ExecScan", "standard_ExecutorRun", "main"}
	plans := map[int]string{}
	s := taker(func(pid int) (*Stack, error) {
		st := &Stack{ID: int64(pid), Frames: executing, Method: "blocked"}
		if pid == 5 {
			st.Frames = []string{"planner", "main"}
		}
		return st, nil
	})
	read, unproven := 0, false
	s.plans = &planTaker{known: map[identity]*takenPlan{}, take: func(_ context.Context, pid int) (string, error) {
		if unproven {
			return "", ErrUnproven
		}
		read++
		return plans[pid], nil
	}}
	procs := map[int32]rules.Proc{}
	for pid := range int32(7) {
		plans[int(pid)], procs[pid] = fmt.Sprintf("runs %d", pid), rules.Proc{State: 'S', Switches: 1}
	}
	sweep := func(at time.Time, want string, reads int) {
		t.Helper()
		rows := []store.Row{
			{PID: 1, State: "active", QueryStart: old, Query: "q"},
			{PID: 2, State: "active", QueryStart: at.UnixMicro() - 1, Query: "q"}, // short
			{PID: 3, State: "active", QueryStart: old},                            // no text is kept
			{PID: 4, State: "idle in transaction", QueryStart: old, Query: "q"},
			{PID: 5, State: "active", QueryStart: old, Query: "q"}, // executes nothing
			{PID: 6, State: "active", QueryStart: old, Query: "q"},
		}
		read = 0
		sweepOf(t, s, at, rows, procs)
		got := ""
		for i := range rows {
			if rows[i].Plan != "" {
				got += fmt.Sprintf("%d %s;", rows[i].PID, rows[i].Plan)
			}
		}
		if got != want || read != reads {
			t.Errorf("%q after %d reads, want %q after %d", got, read, want, reads)
		}
	}
	sweep(now, "1 runs 1;6 runs 6;", 2)
	plans[1], plans[6] = "new", "new"
	procs[6] = rules.Proc{State: 'S', Switches: 2}
	sweep(now.Add(time.Minute), "1 runs 1;6 new;", 1) // only 6 has run
	procs[1] = rules.Proc{State: 'R', Switches: 2}
	unproven = true
	sweep(now.Add(2*time.Minute), "6 new;", 0)
	unproven = false
	sweep(now.Add(3*time.Minute), "1 new;6 new;", 1)
	procs[1] = rules.Proc{State: 'R', Switches: 3}
	s.credit = stackCredit/2 - time.Hour
	sweep(now.Add(4*time.Minute), "6 new;", 0) // no processor time is left
}

// TestPlansTakeTurns has statements for which there is no time in one sweep. None waits without end.
func TestPlansTakeTurns(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	p := &planTaker{known: map[identity]*takenPlan{}}
	var rows []store.Row
	procs := map[int32]rules.Proc{}
	for pid := range int32(4) {
		rows = append(rows, store.Row{PID: pid, State: "active", Query: "q", QueryStart: 1})
		procs[pid] = rules.Proc{State: 'R', Switches: 1}
	}
	var order []int32
	for range 4 {
		list := p.wanted(now, rows, procs, func(identity, rules.Proc) *Stack { return nil })
		order = append(order, list[0].id.pid)
		p.add(list[:1])
		now = now.Add(time.Second)
	}
	if fmt.Sprint(order) != "[0 1 2 3]" {
		t.Error(order)
	}
}

// TestRecordedPlan reads the plan of a statement on each server, after and before the build is proven.
func TestRecordedPlan(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, bin string) {
		server := pgtest.Start(t, bin, pgtest.Options{})
		server.Exec(t, "CREATE TABLE slow AS SELECT i FROM generate_series(1, 10) i")
		c, err := cluster.ByDataDir(server.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		session := server.Connect(t, server.User, "postgres")
		pid := int(session.PgConn().PID())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := session.Exec(ctx, "SELECT count(*) FROM slow WHERE pg_sleep(1000) IS NOT NULL")
			done <- err
		}()
		t.Cleanup(func() {
			cancel()
			<-done
		})
		capturer, err := capture.New(capture.Config{LinesWait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		proof := &plan.Proof{Kinds: []string{"SeqScan", "Agg"}, Fields: []string{
			plan.RunningNode, plan.RelationName, plan.Alias, plan.ParallelAware,
			plan.FigureKey("SeqScan", "Scan Block"), plan.FigureKey("SeqScan", "Scan Blocks Total"),
		}}
		known := func(string, int) *plan.Proof { return proof }
		var text string
		pgtest.Wait(t, "the plan", func() bool {
			if stat, err := process.ReadStat(pid); err != nil || stat.State != 'S' {
				return false
			}
			text, err = TakePlan(t.Context(), capturer, c, known, pid)
			return err == nil && text != ""
		})
		if !strings.HasPrefix(text, "runs Seq Scan on slow") {
			t.Errorf("%q", text)
		}
		_, err = TakePlan(t.Context(), capturer, c, func(string, int) *plan.Proof { return nil }, pid)
		if !errors.Is(err, ErrUnproven) {
			t.Errorf("without a proof: %v", err)
		}
	})
}
