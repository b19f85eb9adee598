package clusterprofile

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/clusterbpf"
)

// runDelay is how long a process has waited for processors until it last got one (schedstat of proc(5)).
func runDelay(t *testing.T, pid int) time.Duration {
	t.Helper()
	var ns, waited, slices uint64
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err == nil {
		_, err = fmt.Sscan(string(data), &ns, &waited, &slices)
	}
	if err != nil {
		t.Skip(err)
	}
	return time.Duration(waited)
}

// pin has a process run on one processor.
func pin(pid, processor int) error {
	var set unix.CPUSet
	set.Set(processor)
	return unix.SchedSetaffinity(pid, &set)
}

// keepBusy starts as many processes that never sleep on a processor. They end with the test, or after some
// minutes.
func keepBusy(t *testing.T, processor, processes int) {
	t.Helper()
	for range processes {
		c := exec.Command("timeout", "180", "sh", "-c", "while :; do :; done")
		c.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = unix.Kill(-c.Process.Pid, unix.SIGKILL)
			_ = c.Wait()
		})
		if err := pin(c.Process.Pid, processor); err != nil {
			t.Fatal(err)
		}
	}
}

// processors returns the first and the last of up to two processors that this process may use.
func processors(t *testing.T) (first, last int) {
	t.Helper()
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatal(err)
	}
	first = -1
	for i := range len(allowed) * 64 {
		switch {
		case !allowed.IsSet(i):
		case first < 0:
			first, last = i, i
		case first == last:
			last = i
		}
	}
	return first, last
}

// loops makes a session that executes a statement again and again until ctx ends. It returns its process.
func loops(ctx context.Context, t *testing.T, server *pgtest.Server, statement string, working *sync.WaitGroup) int {
	t.Helper()
	c := server.Connect(t, "postgres", "postgres")
	working.Go(func() {
		for ctx.Err() == nil {
			if _, err := c.Exec(context.WithoutCancel(ctx), statement); err != nil {
				t.Error(err)
				return
			}
		}
	})
	return int(c.PgConn().PID())
}

// delays has the delays of sessions at one time.
type delays struct {
	at   time.Time
	each map[string]time.Duration
}

func readDelays(t *testing.T, pids map[string]int) delays {
	t.Helper()
	d := delays{each: make(map[string]time.Duration)}
	for name, pid := range pids {
		d.each[name] = runDelay(t, pid)
	}
	d.at = time.Now()
	return d
}

// TestDelaysEqualSchedstat compares the time in which processes waited for a processor with the scheduler's count,
// while all processors are busy. A timer, the client, or another session wakes the sessions. One session changes its
// processor all the time.
func TestDelaysEqualSchedstat(t *testing.T) {
	if err := clusterbpf.Check(); err != nil {
		t.Skip(err)
	}
	first, last := processors(t)
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	defer func() { cancel(); working.Wait() }()
	const work = "PERFORM count(*) FROM generate_series(1, 3000);"
	loop := func(wait string) string {
		return "DO $$ BEGIN FOR i IN 1..20 LOOP " + wait + work + " END LOOP; END $$"
	}
	pids := make(map[string]int)
	for name, statement := range map[string]string{
		"timer": loop("PERFORM pg_sleep(0.004);"), "migrating": loop("PERFORM pg_sleep(0.002);"),
		"client": "SELECT count(*) FROM generate_series(1, 3000)",
		"peer":   loop("PERFORM pg_advisory_lock(1);" + work + "PERFORM pg_advisory_unlock(1);"),
		"other":  loop("PERFORM pg_advisory_lock(1);" + work + "PERFORM pg_advisory_unlock(1);"),
	} {
		pids[name] = loops(ctx, t, server, statement, &working)
		if err := pin(pids[name], last); err != nil {
			t.Fatal(err)
		}
	}
	keepBusy(t, first, 1)
	keepBusy(t, last, 2)
	working.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			_ = pin(pids["migrating"], []int{first, last}[i%2])
			time.Sleep(3 * time.Millisecond) // between two changes
		}
	})
	var before, after delays
	profiling, stop := context.WithCancel(context.Background())
	defer stop()
	p, s := collect(profiling, t, Options{
		DataDir: server.DataDir, Mode: Wall, Duration: time.Minute, CostLimit: 1, // the processors are busy
		Started: func() { before = readDelays(t, pids) },
		Progress: func(took time.Duration, _ int) {
			if took >= 3*time.Second && after.each == nil {
				after = readDelays(t, pids)
				stop() // the sessions work on: until the profile has ended, their shares must stay as they are
			}
		},
	})
	if notes := strings.Join(s.Notes(), " "); after.each == nil || strings.Contains(notes, "CONFIG_SCHED_INFO") {
		t.Fatal(notes)
	}
	compareDelays(t, p, s, pids, before, after)
}

// compareDelays compares the shares of time.
func compareDelays(t *testing.T, p *profile.Profile, s *Summary, pids map[string]int, before, after delays) {
	t.Helper()
	var all float64
	for name, pid := range pids {
		got := sum(p, OffCPU, func(s *profile.Sample) bool {
			return label(s, LabelPID) == strconv.Itoa(pid) && label(s, LabelOffCPU) == runnable
		}) / s.Took.Seconds()
		want := (after.each[name] - before.each[name]).Seconds() / after.at.Sub(before.at).Seconds()
		all += want
		t.Logf("%s: %.3f, the scheduler has %.3f", name, got, want)
		if math.Abs(got-want) > 0.06 {
			t.Errorf("%s: share %.3f, the scheduler has %.3f", name, got, want)
		}
	}
	inSamples := sum(p, OffCPU, func(s *profile.Sample) bool { return label(s, LabelOffCPU) == runnable })
	if got := s.Runnable.Seconds(); math.Abs(got-inSamples) > 0.01 {
		t.Errorf("the summary has %.3f s of waits for a processor, the samples %.3f s", got, inSamples)
	}
	if all < 0.8 {
		t.Errorf("the processors were not busy: %.3f processes waited for them", all)
	}
}
