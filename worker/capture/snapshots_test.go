package capture_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// snapshotsVariable is how many captures TestRandomSnapshots makes in all. Without it there are snapshotsDefault, or
// snapshotsFull if Full.
const (
	snapshotsVariable = "PGSB_SNAPSHOTS"
	snapshotsDefault  = 120
	snapshotsFull     = 500
)

// loads are the statements that the backends run while they are captured. The first two are pgbench's scripts
// select-only and TPC-B-like. %d is replaced by a number from 1 to 20,000 that changes with each execution.
var loads = []struct{ name, sql string }{
	{"select-only", "SELECT abalance FROM accounts WHERE aid = %d"},
	{"tpcb-like", `BEGIN;
		UPDATE accounts SET abalance = abalance + 1 WHERE aid = %[1]d;
		SELECT abalance FROM accounts WHERE aid = %[1]d;
		UPDATE tellers SET tbalance = tbalance + 1 WHERE tid = %[1]d %% 10;
		UPDATE branches SET bbalance = bbalance + 1 WHERE bid = 1;
		INSERT INTO history (aid, delta, mtime) VALUES (%[1]d, 1, CURRENT_TIMESTAMP);
		END`},
	{"parallel query", "SELECT count(*) FROM accounts a JOIN accounts b USING (filler) WHERE a.aid <> b.aid"},
	{"PL/pgSQL", "SELECT nested(3)"},
}

const snapshotsSchema = `
CREATE TABLE branches (bid int PRIMARY KEY, bbalance int);
INSERT INTO branches VALUES (1, 0);
CREATE TABLE tellers (tid int PRIMARY KEY, tbalance int);
INSERT INTO tellers SELECT t, 0 FROM generate_series(0, 9) t;
CREATE TABLE accounts (aid int PRIMARY KEY, abalance int, filler text);
INSERT INTO accounts SELECT a, 0, md5((a % 5000)::text) FROM generate_series(1, 20000) a;
ALTER TABLE accounts SET (parallel_workers = 2);
CREATE TABLE history (aid int, delta int, mtime timestamp);
ANALYZE;
CREATE FUNCTION work(n int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE r record; total bigint := 0; BEGIN
	FOR r IN SELECT aid, md5(filler) AS m FROM accounts WHERE aid <= n ORDER BY 2 LOOP
		total := total + length(r.m || r.aid);
		BEGIN
			IF r.aid % 50 = 0 THEN RAISE EXCEPTION 'no'; END IF;
		EXCEPTION WHEN raise_exception THEN total := total - 1;
		END;
	END LOOP;
	RETURN total;
END $$;
CREATE FUNCTION nested(depth int) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
	IF depth > 0 THEN RETURN nested(depth - 1) + 1; END IF;
	EXECUTE 'SELECT work(300)';
	RETURN work(300);
END $$`

// tally counts captures by their outcome.
type tally struct {
	captures, whole, uncovered, ended, late, starved, frames, deepest int
	failures                                                          map[string]int
}

// TestRandomSnapshots captures every process of busy servers at random times. Each stack must end at the start of the
// program. The test prints the share of complete stacks, and shows each incomplete one.
func TestRandomSnapshots(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long: not with -short")
	}
	captures := snapshotsDefault
	if pgtest.Full() {
		captures = snapshotsFull
	}
	if text := os.Getenv(snapshotsVariable); text != "" {
		var err error
		if captures, err = strconv.Atoi(text); err != nil || captures < 1 {
			t.Fatalf("%s is %q", snapshotsVariable, text)
		}
	}
	var all tally
	servers := pgtest.BinDirs(t)
	pgtest.Each(t, func(t *testing.T, binDir string) {
		one := snapshots(t, binDir, (captures+len(servers)-1)/len(servers))
		all.captures += one.captures
		all.whole += one.whole
	})
	if all.captures > 0 {
		figure.Printf(t, "%d of %d stacks (%.3f %%) ended where the program starts", all.whole, all.captures,
			100*float64(all.whole)/float64(all.captures))
	}
}

func snapshots(t *testing.T, binDir string, captures int) tally {
	t.Helper()
	server := pgtest.Start(t, binDir, pgtest.Options{Conf: []string{
		"parallel_setup_cost = 0", "parallel_tuple_cost = 0", "max_parallel_workers = 4", "autovacuum_naptime = 1s",
		"jit = off", // code that LLVM makes is the stack oracle's matter
		"wal_level = logical", "shared_buffers = 16MB",
	}})
	server.Exec(t, snapshotsSchema)
	keepBusy(t, server)
	c := capturer(t)
	n := tally{failures: map[string]int{}}
	for n.captures < captures {
		processes, err := process.Children(server.PostmasterPID())
		if err != nil {
			t.Fatal(err)
		}
		rand.Shuffle(len(processes), func(i, j int) { processes[i], processes[j] = processes[j], processes[i] })
		for _, pid := range processes {
			before := timeRun(pid)
			tr, err := c.Capture(t.Context(), process.Target{PID: pid, PPID: server.PostmasterPID(), UID: -1},
				capture.Options{})
			switch {
			case errors.Is(err, process.ErrExited), errors.Is(err, process.ErrRecycled):
				n.ended++
			case starved(err, pid, before) && n.starved < 2+captures/100:
				n.starved++
			case err != nil:
				t.Fatalf("process %d: %v", pid, err)
			default:
				n.add(t, pid, tr)
			}
		}
	}
	figure.Printf(t, "%d of %d stacks (%.3f %%) whole, %d in code without call frame information; %d frames, %d at most; "+
		"%d processes ended before, %d while their files were looked for, %d had no processor for seconds",
		n.whole, n.captures, 100*float64(n.whole)/float64(n.captures), n.uncovered, n.frames, n.deepest, n.ended, n.late,
		n.starved)
	if n.late > 2+captures/100 {
		t.Errorf("%d stacks were cut because their processes ended", n.late)
	}
	if n.uncovered > 2+captures/100 {
		t.Errorf("%d stacks in code without call frame information are more than there is such code", n.uncovered)
	}
	return n
}

// starved reports whether a process could not be stopped because it got no processor. It was runnable but has hardly
// run since. On an overloaded machine a process may wait for seconds even without a capture.
func starved(err error, pid int, before time.Duration) bool {
	const little = 100 * time.Millisecond
	var late *ptrace.DeadlineError
	return errors.As(err, &late) && late.State == 'R' && before >= 0 && timeRun(pid)-before < little
}

// timeRun returns how long a process has run, or -1 if that is unknown.
func timeRun(pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		return -1
	}
	run, _, _ := strings.Cut(string(text), " ")
	ns, err := strconv.ParseInt(run, 10, 64)
	if err != nil {
		return -1
	}
	return time.Duration(ns)
}

// add judges one stack.
func (n *tally) add(t *testing.T, pid int, tr *backtrace.Trace) {
	t.Helper()
	th := &tr.Threads[0]
	n.captures++
	n.frames += len(th.Frames)
	n.deepest = max(n.deepest, len(th.Frames))
	last := th.Frames[len(th.Frames)-1]
	started := last.Function == "_start" || last.Function == "" && strings.HasPrefix(last.Module, "postgres")
	bare, guesses, guessed := uncovered(th)
	switch {
	case th.Whole && started && guesses == 0 && len(th.Frames) > 3:
		n.whole++
		return
	case bare:
		const most = 5
		if n.uncovered++; n.uncovered <= most {
			figure.Printf(t, "in code without call frame information: %s", innermost(th))
		}
		return
	case hasEnded(pid) && strings.HasPrefix(th.Stop, "no call frame information"):
		n.late++ // in exit(), and gone before it could be known which files its memory was mapped from
		return
	case hasEnded(pid) && strings.HasPrefix(th.Stop, "no readable stack") && th.Frames[0].Function == "_exit":
		n.late++ // the kernel has taken its memory away already
		return
	}
	const most = 10
	if n.failures[th.Stop]++; n.failures[th.Stop] <= most {
		var text strings.Builder
		for i := range th.Frames {
			f := &th.Frames[i]
			fmt.Fprintf(&text, "#%-3d 0x%x %s %s+%#x %s\n", i, f.Address, f.Name(), f.Module, f.ModuleOffset, f.Note)
		}
		t.Errorf("process %d (ended: %v): %s %s\n%s", pid, hasEnded(pid), th.Stop, guessed, text.String())
	}
}

// innermost words the innermost frames of a stack, and why it ended.
func innermost(th *backtrace.Thread) string {
	const most = 4
	var text strings.Builder
	for i := range th.Frames[:min(len(th.Frames), most)] {
		f := &th.Frames[i]
		fmt.Fprintf(&text, "%s (%s+%#x) %s; ", f.Name(), f.Module, f.ModuleOffset, f.Note)
	}
	return fmt.Sprintf("%s%d frames, %s", text.String(), len(th.Frames), th.Stop)
}

// hasEnded says whether a process is gone, waits to be reaped, or is ending: it has no memory then.
func hasEnded(pid int) bool {
	stat, err := process.ReadStat(pid)
	return err != nil || stat.State == 'Z' || stat.State == 'X' || stat.Flags&process.Exiting != 0
}

// uncovered examines a stack with frames not found by call frame information. It reports whether the innermost frame,
// or the frame before the first guess, runs in code that has none. Such code is the C runtime's start and end of each
// library and program (.init, .fini, deregister_tm_clones), which also runs when a parallel worker exits. Some
// functions of OpenSSL 1.1 in assembly are the other case. If such code has a frame pointer, the walk follows and
// marks it. Otherwise the stack ends there, or after a marked guess.
func uncovered(th *backtrace.Thread) (bare bool, guesses int, guessed string) {
	at := len(th.Frames) - 1
	for i := range th.Frames {
		note := th.Frames[i].Note
		aboutName := strings.HasPrefix(note, "static, ") || strings.HasPrefix(note, "has code of ") ||
			strings.HasPrefix(note, "in ") || strings.HasPrefix(note, "address taken in ") || strings.HasPrefix(note, "part of ")
		proven := note == "" || note == "signal handler called" || note == "by instructions"
		if !proven && !aboutName {
			guessed, at = note, min(at, i-1)
			guesses++
		}
	}
	f := &th.Frames[max(0, at)]
	library := strings.Contains(f.Module, ".so") && !strings.HasPrefix(f.Module, "libc.so")
	program := f.Module == "postgres" && f.Function == ""
	return (library || program) && (guesses <= 1 && th.Whole || len(th.Frames) <= 1+min(guesses, 1)), guesses, guessed
}

// keepBusy runs every load in its own connection, select-only in two, until the test ends.
func keepBusy(t *testing.T, server *pgtest.Server) {
	t.Helper()
	for i := range len(loads) + 1 {
		load := loads[i%len(loads)]
		conn := server.Connect(t, server.User, "postgres")
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		done := make(chan struct{})
		t.Cleanup(func() { cancel(); <-done })
		started := make(chan error, 1)
		go func() {
			defer close(done)
			for first := true; ctx.Err() == nil; first = false {
				sql := load.sql
				if strings.Contains(sql, "%") {
					sql = fmt.Sprintf(sql, 1+rand.IntN(20000))
				}
				err := conn.PgConn().Exec(ctx, sql).Close()
				if first {
					started <- err
				}
				if err != nil {
					return // by cancel only: the first one was in order
				}
			}
		}()
		select {
		case err := <-started:
			if err != nil {
				t.Fatalf("%s: %v", load.name, err)
			}
		case <-time.After(pgtest.Patience):
			t.Fatalf("%s takes too long", load.name)
		}
	}
}
