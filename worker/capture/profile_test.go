package capture_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/sampler"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/process/procfs"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// awaiting returns the capturer of the tests of profiles. It keeps the names of the servers' functions.
var awaiting = sync.OnceValues(func() (*capture.Capturer, error) {
	return capture.New(capture.Config{AwaitNames: true, LinesWait: time.Minute})
})

// profile samples processes for a while.
func profile(t *testing.T, pids []int, span time.Duration, o capture.ProfileOptions, each func(*backtrace.Trace)) {
	t.Helper()
	profileUntil(t, pids, span, o, func() bool { return false }, each)
}

// profileUntil is profile that ends early when enough returns true.
func profileUntil(t *testing.T, pids []int, span time.Duration, o capture.ProfileOptions, enough func() bool,
	each func(*backtrace.Trace),
) {
	t.Helper()
	targets := make([]process.Target, len(pids))
	for i, pid := range pids {
		targets[i] = process.Target{PID: pid, UID: -1}
	}
	c, err := awaiting()
	if err != nil {
		t.Fatal(err)
	}
	for i := range targets { // reads what names the frames, before the time runs
		_, _ = c.Capture(t.Context(), targets[i], capture.Options{NoContext: true})
	}
	ctx, cancel := context.WithTimeout(t.Context(), span)
	defer cancel()
	_, err = c.Profile(ctx, targets, o, func(tr *backtrace.Trace, times int) error {
		for range times {
			each(tr)
		}
		if enough() {
			cancel()
		}
		return nil
	})
	if errors.Is(err, sampler.ErrUnsupported) || errors.Is(err, fs.ErrPermission) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestProfileRandom: samples of all processes of a server at work lead to where the program starts. One profile ends
// with enough samples; if Full, there are three, because parallel workers come and go.
func TestProfileRandom(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long: not with -short")
	}
	pgtest.One(t, func(t *testing.T, binDir string) {
		server := pgtest.Start(t, binDir, pgtest.Options{Conf: []string{
			"parallel_setup_cost = 0", "parallel_tuple_cost = 0", "max_parallel_workers = 4", "jit = off",
		}})
		server.Exec(t, snapshotsSchema)
		keepBusy(t, server)
		n := tally{failures: map[string]int{}}
		ready := 0
		rounds := 1
		if pgtest.Full() {
			rounds = 3
		}
		for range rounds {
			processes, err := procfs.Children(server.PostmasterPID())
			if err != nil {
				t.Fatal(err)
			}
			processes = slices.DeleteFunc(processes, func(pid int) bool {
				_, err := procfs.Maps(pid)
				return err != nil || hasEnded(pid)
			})
			earlier, earlierReady := n.captures, ready
			profileUntil(t, processes, time.Minute, capture.ProfileOptions{Interval: 5 * time.Millisecond},
				func() bool { return n.captures-earlier >= 200 && ready-earlierReady >= 40 },
				func(tr *backtrace.Trace) {
					if len(tr.Threads[0].Frames) == 0 {
						t.Fatalf("process %d: %+v", tr.PID, tr.Threads[0])
					}
					n.add(t, tr.PID, tr)
					if tr.Threads[0].State == 'R' {
						ready++
					}
				})
		}
		figure.Printf(t, "%d of %d samples whole, %d of processes that ran or waited for a processor; %d frames, %d at most",
			n.whole, n.captures, ready, n.frames, n.deepest)
		if n.captures < 100 || ready < 20 { // most of them wait for a slow client
			t.Errorf("%d samples, %d of processes that were ready to run", n.captures, ready)
		}
	})
}

// TestProfileAsleep: the samples of processes that sleep are what a stop shows.
func TestProfileAsleep(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, binDir string) {
		server := pgtest.Lend(t, binDir, pgtest.Options{})
		server.Connect(t, server.User, "postgres")
		processes, err := procfs.Children(server.PostmasterPID())
		if err != nil {
			t.Fatal(err)
		}
		stacks := make(map[int]map[string][]backtrace.Frame)
		profile(t, processes, 500*time.Millisecond, capture.ProfileOptions{}, func(tr *backtrace.Trace) {
			if tr.Engine != sampler.EngineSampled || tr.Pause != 0 {
				t.Errorf("engine %s, pause %v", tr.Engine, tr.Pause)
			}
			if stacks[tr.PID] == nil {
				stacks[tr.PID] = make(map[string][]backtrace.Frame)
			}
			stacks[tr.PID][pcsOf(tr.Threads[0].Frames)] = tr.Threads[0].Frames
		})
		equal := 0
		c := patient(t, capture.Config{AwaitNames: true})
		for _, pid := range processes {
			tr, err := c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, capture.Options{NoContext: true})
			if errors.Is(err, process.ErrExited) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			stopped := tr.Threads[0].Frames
			sampled, seen := stacks[pid][pcsOf(stopped)]
			if !seen {
				t.Logf("process %d was elsewhere at the stop than in each of %d stacks before", pid, len(stacks[pid]))
				continue
			}
			equal++
			for i := range stopped {
				if a, b := &stopped[i], &sampled[i]; a.Name() != b.Name() || a.Note != b.Note {
					t.Errorf("process %d, frame %d: %+v, by a stop %+v", pid, i, b, a)
				}
			}
		}
		if equal < len(processes)-2 {
			t.Errorf("%d of %d processes sleep where a stop shows them", equal, len(processes))
		}
	})
}

// pcsOf are those of frames.
func pcsOf(frames []backtrace.Frame) string {
	var text []byte
	for i := range frames {
		for shift := 0; shift < 64; shift += 8 {
			text = append(text, byte(frames[i].Address>>shift))
		}
	}
	return string(text)
}

// TestProfileExec: a process that executes another program meanwhile has the other's stacks from then on, and no name
// of one is in a stack of the other.
func TestProfileExec(t *testing.T) {
	t.Parallel()
	for _, batch := range []time.Duration{50 * time.Millisecond, 700 * time.Millisecond} {
		t.Run(batch.String(), func(t *testing.T) { t.Parallel(); profileExec(t, batch) })
	}
}

func profileExec(t *testing.T, batch time.Duration) {
	t.Helper()
	exe := build(t, "-O2")
	c := exec.CommandContext(t.Context(), "sh", "-c", `read x; sleep 0.3; exec "$0" busy`, exe)
	input, err := c.StdinPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	before, between, after := 0, 0, 0
	var last *backtrace.Thread
	// A machine that stalls hands a batch over late: it takes what time it needs.
	profileUntil(t, []int{c.Process.Pid}, time.Minute, capture.ProfileOptions{Batch: batch},
		func() bool { return after > between+20 },
		func(tr *backtrace.Trace) {
			last = &tr.Threads[0]
			switch all := names(last); {
			case before > 0 && !last.Whole:
				between++ // where the other program and its stack are was not known yet
			case slices.Contains(all, "spin"):
				after++
				checkOrder(t, last, "spin", "inner", "middle", "outer", "main", "_start")
			case before == 0:
				before++
				_ = input.Close()
			default:
				before++
			}
		})
	t.Logf("%d samples before, %d between, %d after", before, between, after)
	if before == 0 || between >= after {
		t.Errorf("%d samples before, %d between, %d after; the last one %q", before, between, after, names(last))
	}
}

// TestProfileDuration: a duration begins when all is prepared, which alone takes longer than this one.
func TestProfileDuration(t *testing.T) {
	t.Parallel()
	sleeper := exec.CommandContext(t.Context(), "sleep", "600")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() })
	samples := 0
	for tries := 0; samples == 0 && tries < 20; tries++ { // on a busy machine nobody may have looked until then
		stats, err := capturer(t).Profile(t.Context(), []process.Target{{PID: sleeper.Process.Pid, UID: -1}},
			capture.ProfileOptions{Duration: 5 * time.Millisecond, Interval: time.Millisecond},
			func(_ *backtrace.Trace, times int) error { samples += times; return nil })
		if errors.Is(err, sampler.ErrUnsupported) || errors.Is(err, fs.ErrPermission) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		if stats.Took <= 0 {
			t.Errorf("samples were taken for %v", stats.Took)
		}
	}
	if samples == 0 {
		t.Error("no sample")
	}
}

// TestProfileUnreachable: while the mappings of a process cannot be read, its samples count, and have no names.
func TestProfileUnreachable(t *testing.T) {
	t.Parallel()
	sleeper := exec.CommandContext(t.Context(), "sleep", "600")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	pid := sleeper.Process.Pid
	t.Cleanup(func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() })
	named, unnamed := 0, 0
	var release func()
	_, err := capturer(t).Profile(t.Context(), []process.Target{{PID: pid, UID: -1}},
		capture.ProfileOptions{Duration: 3 * time.Second, Batch: 200 * time.Millisecond},
		func(tr *backtrace.Trace, times int) error {
			if slices.Contains(names(&tr.Threads[0]), "__libc_start_main") {
				named += times
				if release == nil && process.Guard.Begin(pid) { // from now on
					release = func() { process.Guard.End(pid) }
				}
				return nil
			}
			unnamed += times
			return nil
		})
	if release != nil {
		release()
	}
	if errors.Is(err, sampler.ErrUnsupported) || errors.Is(err, fs.ErrPermission) {
		t.Skip(err)
	}
	if err != nil || named == 0 || unnamed == 0 {
		t.Errorf("%d samples with names, then %d without: %v", named, unnamed, err)
	}
}

// TestProfileEnds: processes that end before their first samples are looked at, and after. What was seen has names.
func TestProfileEnds(t *testing.T) {
	t.Parallel()
	c := capturer(t)
	seen := 0
	// On a busy machine a process has to live for longer until there is a sample of it.
	for ms := 20; ms <= 300 || seen == 0 && ms < 20000; ms += max(40, ms-260) {
		short := exec.CommandContext(t.Context(), "sleep", fmt.Sprintf("%d.%03d", ms/1000, ms%1000))
		if err := short.Start(); err != nil {
			t.Fatal(err)
		}
		go func() { _ = short.Wait() }()
		_, err := c.Profile(t.Context(), []process.Target{{PID: short.Process.Pid, UID: -1}}, capture.ProfileOptions{},
			func(tr *backtrace.Trace, times int) error {
				if slices.Contains(names(&tr.Threads[0]), "__libc_start_main") {
					seen += times
				}
				return nil
			})
		if errors.Is(err, sampler.ErrUnsupported) || errors.Is(err, fs.ErrPermission) {
			t.Skip(err)
		}
		if !errors.Is(err, process.ErrExited) {
			t.Errorf("a process of %d ms: %v", ms, err)
		}
	}
	if seen == 0 {
		t.Error("no stack of any of them")
	}
}
