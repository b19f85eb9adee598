package capture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/arch"
)

// blindCode shows calls but no functions, so that the recovery does not know the sizes of frames.
type blindCode struct{ code unwind.ImageCode }

func (c blindCode) Code(addr, n uint64) ([]byte, error) {
	if n > 7 {
		return nil, errors.New("not shown")
	}
	return c.code.Code(addr, n)
}

type blindModules struct{ unwind.Modules }

func (m blindModules) Find(addr uint64) (unwind.Module, bool) {
	module, ok := m.Modules.Find(addr)
	if module.Code != nil {
		module.Code, module.CodeCache = blindCode{module.Code}, nil
	}
	return module, ok
}

// busy are statements that keep a backend on the CPU in many places of the server.
var busy = []string{
	`DO $$ BEGIN LOOP PERFORM sum(length(t)) FROM (SELECT x::text t FROM generate_series(1, 3000) x
		ORDER BY md5(x::text)) s; END LOOP; END $$`,
	"DO $$ BEGIN LOOP BEGIN PERFORM 1 / (random() * 0)::int; EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP; END $$",
	`DO $$ BEGIN LOOP PERFORM regexp_replace(repeat('ab1', 30), '(a)(b)', '\2\1', 'g'),
		to_char(now(), 'YYYY MON'); END LOOP; END $$`,
	"DO $$ BEGIN LOOP CREATE TEMP TABLE b AS SELECT 1 x; ANALYZE b; DROP TABLE b; END LOOP; END $$",
	`DO $$ BEGIN LOOP PERFORM count(*) FROM pg_class a JOIN pg_attribute b ON a.oid = b.attrelid GROUP BY relkind;
		PERFORM jsonb_agg(to_jsonb(a)) FROM pg_type a; END LOOP; END $$`,
}

// TestRecoveryIsNeverWrong stops busy backends at arbitrary moments. It unwinds each stack once with all registers, and
// once with only the program counter and the stack pointer. The second result may be shorter than the first, but must
// not differ from it.
func TestRecoveryIsNeverWrong(t *testing.T) {
	pgtest.One(t, func(t *testing.T, binDir string) {
		if testing.Short() {
			t.Skip("takes long: not with -short")
		}
		server := pgtest.Lend(t, binDir, pgtest.Options{})
		c, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		for _, sql := range busy {
			var sum, blind tally
			whileBusy(t, server, sql, func(s *snapshot.Snapshot) {
				space := c.processes.Open(s.PID, 1, s.Maps)
				sum.compare(t, c.arch, s, space)
				blind.compare(t, c.arch, s, blindModules{space})
			})
			figure.Printf(t, "%.40s…: %d stacks; with two registers alone %d whole, %d of them by a recovery %v; "+
				"when functions are not readable %d whole, %d by a recovery %v",
				sql, sum.all, sum.whole, sum.recovered, sum.reasons, blind.whole, blind.recovered, blind.reasons)
			if sum.all == 0 || sum.whole*4 < sum.all*3 { // a walk that ends is no fault; that few do is a figure
				t.Errorf("%d of %d stacks whole", sum.whole, sum.all)
			}
		}
	})
}

// whileBusy stops a backend that executes a statement again and again.
func whileBusy(t *testing.T, server *pgtest.Server, sql string, judge func(*snapshot.Snapshot)) {
	t.Helper()
	conn := server.Connect(t, server.User, "postgres")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = conn.PgConn().Exec(ctx, sql).Close()
	}()
	target := process.Target{PID: int(conn.PgConn().PID()), UID: -1}
	stops := 60
	if pgtest.Full() {
		stops = 1000
	}
	for range stops {
		before := timeRun(t, target.PID)
		pgtest.Wait(t, "the backend to run", func() bool { return timeRun(t, target.PID) != before })
		s, err := ptrace.Capture(ctx, target, snapshot.Options{Deadline: pgtest.Patience})
		if err != nil {
			t.Fatal(err)
		}
		judge(s)
	}
	cancel()
	<-done
}

// timeRun returns a text that changes when a process runs.
func timeRun(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		t.Fatal(err)
	}
	ran, _, _ := strings.Cut(string(text), " ")
	return ran
}

// tally counts comparisons.
type tally struct {
	all, whole, recovered int
	reasons               map[string]int // of those not whole
}

func (c *tally) compare(t *testing.T, a *arch.Arch, s *snapshot.Snapshot, modules unwind.Modules) {
	t.Helper()
	th := &s.Threads[0]
	full, err := a.DecodePRStatus(th.Registers)
	if err != nil {
		t.Fatal(err)
	}
	var few arch.Registers
	for _, reg := range []int{a.PC, a.SP} {
		v, _ := full.Get(reg)
		few.Set(reg, v)
	}
	u := unwind.Unwinder{Arch: a}
	mem := newMemory(th, nil, a)
	want, wantStop := u.Unwind(nil, full, mem, modules)
	got, stop := u.Unwind(nil, few, mem, modules)
	if !wantStop.Whole() {
		return
	}
	c.all++
	recovered := slices.ContainsFunc(got, func(f unwind.Frame) bool { return f.Method == unwind.ByRecovery })
	if stop.Whole() {
		c.whole++
		if recovered {
			c.recovered++
		}
	}
	if !stop.Whole() {
		if c.reasons == nil {
			c.reasons = map[string]int{}
		}
		c.reasons[stop.String()]++
	}
	for i := range got {
		if i >= len(want) || got[i].PC != want[i].PC || got[i].CFA != want[i].CFA && i < len(got)-1 {
			t.Errorf("frame %d of %d differs: %#x, CFA %#x\n%+v\n%+v (%v)", i, len(got), got[i].PC, got[i].CFA, want, got, stop)
			return
		}
	}
	if stop.Whole() && len(got) != len(want) {
		t.Errorf("whole with %d frames instead of %d", len(got), len(want))
	}
}

// TestNonStopBusy captures backends that are busy, without a stop: every capture must come to something, asleep or
// awake.
func TestNonStopBusy(t *testing.T) {
	pgtest.One(t, func(t *testing.T, binDir string) {
		if testing.Short() {
			t.Skip("takes long: not with -short")
		}
		server := pgtest.Lend(t, binDir, pgtest.Options{})
		c, err := New(Config{LinesWait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		engines, whole, all := map[string]int{}, 0, 0
		var took []time.Duration
		for _, sql := range busy {
			conn := server.Connect(t, server.User, "postgres")
			pid := int(conn.PgConn().PID())
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = conn.PgConn().Exec(ctx, sql).Close()
			}()
			for range pgtest.Extent(40, 100) {
				tr, err := c.Capture(ctx, process.Target{PID: pid, UID: -1}, Options{NonStop: true, Deadline: pgtest.Patience})
				if err != nil {
					t.Fatal(err)
				}
				all++
				engines[tr.Engine]++
				took = append(took, tr.Total)
				th := &tr.Threads[0]
				if th.Whole && th.Frames[len(th.Frames)-1].Function == "_start" {
					whole++
				} else {
					t.Logf("%d frames, %s", len(th.Frames), th.Stop)
				}
			}
			cancel()
			<-done
		}
		slices.Sort(took)
		figure.Printf(t, "%d captures: engines %v, %d whole; median %v, 99 of 100 within %v",
			all, engines, whole, took[len(took)/2], took[len(took)*99/100])
		if whole*100 < all*99 {
			t.Errorf("%d of %d whole", whole, all)
		}
	})
}
