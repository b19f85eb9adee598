package capture_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// TestMusl captures every process of a server built with musl, Alpine's C library, at random times, with and without
// a stop. That library has neither call frame information nor frame pointers. Each waiting stack begins and ends in
// it. The outermost function is the caller of main or exit, and neither returns.
func TestMusl(t *testing.T) {
	binDir := os.Getenv("PGSB_MUSL_BINDIR")
	if binDir == "" {
		t.Skip("PGSB_MUSL_BINDIR is not set: make check-musl")
	}
	server := pgtest.Start(t, binDir, pgtest.Options{Conf: []string{
		"parallel_setup_cost = 0", "parallel_tuple_cost = 0", "max_parallel_workers = 4", "autovacuum_naptime = 1s",
		"wal_level = logical", "shared_buffers = 16MB",
	}})
	server.Exec(t, snapshotsSchema)
	keepBusy(t, server)
	c := capturer(t)
	for _, nonStop := range []bool{false, true} {
		sum := muslTally{engines: map[string]int{}}
		for sum.all < 3000 {
			processes, err := process.Children(server.PostmasterPID())
			if err != nil {
				t.Fatal(err)
			}
			processes = append(processes, server.PostmasterPID())
			rand.Shuffle(len(processes), func(i, j int) { processes[i], processes[j] = processes[j], processes[i] })
			for _, pid := range processes {
				tr, err := c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, capture.Options{NonStop: nonStop})
				switch {
				case errors.Is(err, process.ErrExited), errors.Is(err, process.ErrRecycled):
				case err != nil:
					t.Fatalf("process %d: %v", pid, err)
				default:
					sum.add(t, tr, hasEnded(pid))
				}
			}
		}
		figure.Printf(t, "musl, without a stop: %t: %d of %d stacks (%.3f %%) lead to main, %d begin in musl, %d of "+
			"processes that had ended; engines %v", nonStop, sum.whole, sum.all,
			100*float64(sum.whole)/float64(sum.all), sum.inside, sum.ended, sum.engines)
		if sum.whole+sum.ended < sum.all-sum.all/200 || sum.inside == 0 {
			t.Errorf("%d of %d stacks lead to main", sum.whole, sum.all)
		}
	}
}

// muslTally counts stacks.
type muslTally struct {
	all, whole, inside, ended, shown int
	engines                          map[string]int
}

func (n *muslTally) add(t *testing.T, tr *backtrace.Trace, ended bool) {
	t.Helper()
	th := &tr.Threads[0]
	n.all++
	n.engines[tr.Engine]++
	if th.Frames[0].Module == "libc.so" {
		n.inside++
	}
	last := len(th.Frames) - 1
	if last > 1 && th.Frames[last-1].Function == "main" && strings.Contains(th.Stop, "no way to a return") {
		n.whole++
		return
	}
	if ended {
		n.ended++
		return
	}
	if n.shown++; n.shown > 10 {
		return
	}
	var text strings.Builder
	for i := range th.Frames {
		f := &th.Frames[i]
		fmt.Fprintf(&text, "#%-3d %#x %s %s %s\n", i, f.Address, f.Name(), f.Module, f.Note)
	}
	t.Logf("process %d: %s\n%s", tr.PID, th.Stop, text.String())
}
