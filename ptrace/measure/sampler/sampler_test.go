package sampler

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/ptrace/thread"
)

// redZone is the default of Options.RedZone.
const redZone = 128

// newSampler makes a sampler, or says why there is none.
func newSampler(t *testing.T, o Options, pids ...int) *Sampler {
	t.Helper()
	var targets []process.Target
	for _, pid := range pids {
		targets = append(targets, process.Target{PID: pid, UID: -1})
	}
	s, err := New(targets, o)
	if errors.Is(err, ErrUnsupported) || errors.Is(err, fs.ErrPermission) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// started starts a program that ends with the test.
func started(t *testing.T, name string, arguments ...string) int {
	t.Helper()
	c := exec.Command(name, arguments...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return c.Process.Pid
}

// both is a program that runs and sleeps, each for some milliseconds.
const both = `
import time, random
while True:
    end = time.monotonic() + random.uniform(0.001, 0.007)
    while time.monotonic() < end: pass
    time.sleep(random.uniform(0.001, 0.007))`

// wakes is a program that sleeps, but for a moment ten times a second.
const wakes = `
import time
while True: time.sleep(0.1)`

// TestSampler takes samples of a process that sleeps, of one that runs, and of two that do both. Each of them is seen
// ready to run as often as it is: not more or less often because it goes to sleep or is woken up at some moments.
func TestSampler(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed")
	}
	pids := []int{
		started(t, "sleep", "1000"), started(t, "sh", "-c", "while :; do :; done"), started(t, "python3", "-c", both),
		started(t, "python3", "-c", wakes),
	}
	for _, pid := range pids[2:] {
		awaitSleep(t, pid) // it executes other programs before, to find python3
	}
	s := newSampler(t, Options{Batch: 500 * time.Millisecond}, pids...)
	type counts struct {
		samples, ready, snapshots int
		before                    float64
	}
	all := make(map[int]*counts)
	for _, pid := range pids {
		all[pid] = &counts{before: ready(t, pid)}
	}
	const span = 5 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), span)
	defer cancel()
	began := time.Now()
	stats, err := s.Run(ctx, func(list []Sample) error {
		for _, snap := range list {
			c, th := all[snap.PID], &snap.Threads[0]
			c.snapshots++
			if c.samples += snap.Times; th.State == 'R' {
				c.ready += snap.Times
			}
			if th.Err != nil || snap.Engine != EngineSampled || th.Stack.Cut || len(th.Stack.Data) < redZone ||
				spIn(th.Registers) != th.Stack.Start+redZone {
				return fmt.Errorf("process %d: %+v", snap.PID, th)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	asleep, waking := all[pids[0]], all[pids[3]]
	if asleep.snapshots > asleep.samples/3 {
		t.Errorf("of a process that slept all the time: %+v", asleep)
	}
	if waking.samples < asleep.samples*7/10 || waking.samples < waking.snapshots*2 {
		t.Errorf("of a process that woke up now and then: %+v, one that did not %+v", waking, asleep)
	}
	for _, pid := range pids {
		c := all[pid]
		share, want := float64(c.ready)/float64(c.samples), (ready(t, pid)-c.before)/took.Seconds()
		t.Logf("process %d: %d samples, in %.3f of them ready to run; it was so for %.3f of the time", pid, c.samples,
			share, want)
		const least, tolerance = 50, 0.15 // on a busy machine there are fewer samples, and chance does more
		if c.samples < least || math.Abs(share-want) > tolerance {
			t.Errorf("process %d: %+v in %v, ready for %.3f of it; %+v", pid, c, took, want, stats)
		}
	}
}

// TestSamplerEnds: a sampler ends with its last process, and with an error of who takes what it has.
func TestSamplerEnds(t *testing.T) {
	short := exec.Command("sleep", "0.3")
	if err := short.Start(); err != nil {
		t.Fatal(err)
	}
	s := newSampler(t, Options{Batch: time.Hour}, short.Process.Pid) // nobody waits for that
	go func() { _ = short.Wait() }()
	if _, err := s.Run(t.Context(), func([]Sample) error { return nil }); !errors.Is(err, process.ErrExited) {
		t.Errorf("its process has ended: %v", err)
	}
	want := errors.New("enough")
	s = newSampler(t, Options{Batch: 20 * time.Millisecond}, started(t, "sleep", "1000"))
	if _, err := s.Run(t.Context(), func([]Sample) error { return want }); !errors.Is(err, want) {
		t.Errorf("enough samples: %v", err)
	}
	if _, err := s.Refresh(os.Getpid(), nil); err == nil {
		t.Error("the mappings of a process that is not sampled were read")
	}
}

// TestUnreachable: while an earlier read of a process has not ended, reads of its mappings fail in time. Afterwards its
// mappings can be read.
func TestUnreachable(t *testing.T) {
	pid := started(t, "sleep", "1000")
	target := process.Target{PID: pid, UID: -1}
	copied, err := NewCopiedProcess(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(copied.Release)
	s := newSampler(t, Options{}, pid)
	layout := s.targets[0].layout
	if !process.Guard.Begin(pid) {
		t.Fatal("another read runs")
	}
	_, held := NewCopiedProcess(target)
	_, refreshed := s.Refresh(pid, layout)
	for what, err := range map[string]error{"held": held, "read again": copied.Refresh(), "sampled": refreshed} {
		if !errors.Is(err, process.ErrUnreachable) {
			t.Errorf("a process that is %s: %v", what, err)
		}
	}
	process.Guard.End(pid)
	if _, err := s.Refresh(pid, layout); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestSamplerRefuses: nobody, too many, and what is no process, or is not the one that is meant.
func TestSamplerRefuses(t *testing.T) {
	pid := started(t, "sleep", "1000")
	if s := newSampler(t, Options{}, 1<<22-1, pid, 1<<22); len(s.targets) != 1 || s.targets[0].target.PID != pid {
		t.Errorf("of those that have ended and one that has not: %+v", s.targets)
	}
	for _, c := range []struct {
		name    string
		targets []process.Target
		want    error
	}{
		{"nobody", nil, nil},
		{"too many", make([]process.Target, MaxTargets+1), nil},
		{"no process id", []process.Target{{PID: -1}}, process.ErrInvalidPID},
		{"no process", []process.Target{{PID: 1 << 22}}, process.ErrExited},
		{"another one", []process.Target{{PID: pid, StartTime: 1, UID: -1}}, process.ErrRecycled},
		{"another user's", []process.Target{{PID: pid, UID: 4711}}, process.ErrRecycled},
		{"two that are not", []process.Target{{PID: 1<<22 - 1}, {PID: 1 << 22}}, process.ErrExited},
	} {
		s, err := New(c.targets, Options{})
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %v", c.name, s, err)
		}
	}
}

// ready is for how many seconds a process has run, or waited for a processor.
func ready(t *testing.T, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	var ran, waited float64
	if err == nil {
		_, err = fmt.Sscan(string(text), &ran, &waited)
	}
	if err != nil {
		t.Fatal(err)
	}
	return (ran + waited) / 1e9
}

// spIn is the stack pointer among registers.
func spIn(registers []byte) uint64 {
	var all [snapshot.MaxRegisters]byte
	sp, _ := snapshot.StackPointer(&all, copy(all[:], registers))
	return sp
}

// TestSamplerConfined: a program that has been told to run on one processor samples what runs on another one.
func TestSamplerConfined(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("there is one processor")
	}
	if _, err := exec.LookPath("taskset"); err != nil {
		t.Skip("taskset is not installed")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var own, first unix.CPUSet
	if err := unix.SchedGetaffinity(0, &own); err != nil || !own.IsSet(0) || !own.IsSet(1) {
		t.Skip("processors 0 and 1 are not there: ", err)
	}
	pid := started(t, "taskset", "-c", "1", "sh", "-c", "while :; do :; done")
	first.Set(0)
	if err := unix.SchedSetaffinity(0, &first); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &own) }()
	s := newSampler(t, Options{Duration: time.Second}, pid)
	seen := 0
	stats, err := s.Run(t.Context(), func(list []Sample) error {
		for _, sample := range list {
			seen += sample.Times
		}
		return nil
	})
	if err != nil || seen == 0 {
		t.Errorf("%d samples, %v", seen, err)
	}
	if unseen := online() - own.Count(); stats.Unseen > unseen {
		t.Errorf("%d processors unseen, not %d", stats.Unseen, unseen)
	}
	var now unix.CPUSet
	if err := unix.SchedGetaffinity(0, &now); err != nil || now != first {
		t.Errorf("bound to %d processors afterwards, %v", now.Count(), err)
	}
}

func TestCountOnline(t *testing.T) {
	for list, want := range map[string]int{"0": 1, "0-1": 2, "0-3,5,8-9": 7, "": 0, "x": 0, "3-1": 0} {
		if n := countOnline(list); n != want {
			t.Errorf("%q: %d instead of %d", list, n, want)
		}
	}
}

// TestSamplerRests checks that a sampler takes no samples during a rest, does not count that time, and continues
// afterwards.
func TestSamplerRests(t *testing.T) {
	const span, rest, rate = time.Second, 1500 * time.Millisecond, 100
	s := newSampler(t, Options{Interval: time.Second / rate, Duration: span, Batch: span / 10},
		started(t, "sleep", "1000"), started(t, "sh", "-c", "while :; do :; done"))
	taken, resting := make(map[int]int), false
	rests := make(chan error, 1)
	began := time.Now()
	stats, err := s.Run(context.Background(), func(list []Sample) error {
		for _, sample := range list {
			taken[sample.PID] += sample.Times
		}
		if !resting && time.Since(began) > span/2 {
			resting = true
			go func() {
				rests <- thread.PauseWork(time.Minute, func() error { time.Sleep(rest); return nil })
			}()
		}
		return nil
	})
	took := time.Since(began)
	if err != nil || !resting || <-rests != nil {
		t.Fatal(err, resting)
	}
	if stats.Took < span || took < span+rest || took-stats.Took < rest {
		t.Errorf("of %v it says that it was at work for %v", took, stats.Took)
	}
	for pid, n := range taken {
		if most := int(1.3 * rate * stats.Took.Seconds()); n < 10 || n > most {
			t.Errorf("process %d: %d samples in %v", pid, n, stats.Took)
		}
	}
	if len(taken) != 2 {
		t.Error(taken)
	}
}
