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
	"pg_stat_backtrace/ptrace/bpf/clusterbpf"
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

// keepBusy starts as many processes that never sleep on a processor. They end with the test, by end, or after half a
// minute.
func keepBusy(t *testing.T, processor, processes int) (end func()) {
	t.Helper()
	var pids []int
	for range processes {
		c := exec.Command("timeout", "30", "sh", "-c", "while :; do :; done")
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
		pids = append(pids, c.Process.Pid)
	}
	return func() {
		for _, pid := range pids {
			_ = unix.Kill(-pid, unix.SIGKILL)
		}
	}
}

// TestDelaysEqualSchedstat compares the time in which processes waited for a processor with the scheduler's count, while
// all processors are busy. A timer, the client, or another session wakes the sessions. One session changes its processor
// all the time.
func TestDelaysEqualSchedstat(t *testing.T) {
	if err := clusterbpf.Check(); err != nil {
		t.Skip(err)
	}
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatal(err)
	}
	var processors []int
	for i := range len(allowed) * 64 {
		if allowed.IsSet(i) && len(processors) < 2 {
			processors = append(processors, i)
		}
	}
	last := processors[len(processors)-1]
	server := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	defer func() { cancel(); working.Wait() }()
	pids := make(map[string]int)
	session := func(name string, processor int, statement string) {
		c := server.Connect(t, "postgres", "postgres")
		pids[name] = int(c.PgConn().PID())
		if err := pin(pids[name], processor); err != nil {
			t.Fatal(err)
		}
		working.Go(func() {
			for ctx.Err() == nil {
				if _, err := c.Exec(context.WithoutCancel(ctx), statement); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	const work = "PERFORM count(*) FROM generate_series(1, 3000);"
	loop := func(wait string) string {
		return "DO $$ BEGIN FOR i IN 1..20 LOOP " + wait + work + " END LOOP; END $$"
	}
	session("timer", last, loop("PERFORM pg_sleep(0.004);"))
	session("client", last, "SELECT count(*) FROM generate_series(1, 3000)")
	peers := loop("PERFORM pg_advisory_lock(1);" + work + "PERFORM pg_advisory_unlock(1);")
	session("peer", last, peers)
	session("other peer", last, peers)
	session("migrating", last, loop("PERFORM pg_sleep(0.002);"))
	endFirst, endLast := keepBusy(t, processors[0], 1), keepBusy(t, last, 2)
	working.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			_ = pin(pids["migrating"], processors[i%len(processors)])
			time.Sleep(3 * time.Millisecond) // between two changes
		}
	})
	var before, after time.Time
	first, end := make(map[string]time.Duration), make(map[string]time.Duration)
	read := func(into map[string]time.Duration) time.Time {
		for name, pid := range pids {
			into[name] = runDelay(t, pid)
		}
		return time.Now()
	}
	profiling, stop := context.WithCancel(context.Background())
	defer stop()
	p, s := collect(profiling, t, Options{
		DataDir: server.DataDir, Mode: Wall, Duration: time.Minute, CostLimit: 1, // the processors are busy
		Started: func() { before = read(first) },
		Progress: func(took time.Duration, _ int) {
			if took >= 3*time.Second && after.IsZero() {
				after = read(end)
				stop()
				cancel()
				endFirst()
				endLast()
			}
		},
	})
	if after.IsZero() {
		t.Fatalf("the profile ended early: %q", s.Notes())
	}
	var all float64
	for name, pid := range pids {
		got := sum(p, OffCPU, func(s *profile.Sample) bool {
			return label(s, LabelPID) == strconv.Itoa(pid) && label(s, LabelOffCPU) == runnable
		}) / s.Took.Seconds()
		want := (end[name] - first[name]).Seconds() / after.Sub(before).Seconds()
		t.Logf("%s: %.3f, the scheduler has %.3f", name, got, want)
		all += want
		if math.Abs(got-want) > 0.06 {
			t.Errorf("%s: share %.3f, the scheduler has %.3f", name, got, want)
		}
	}
	if all < 0.8 {
		t.Errorf("the processors were not busy: %.3f processes waited for them", all)
	}
	if notes := strings.Join(s.Notes(), " "); strings.Contains(notes, "CONFIG_SCHED_INFO") {
		t.Error(notes)
	}
}
