package ptrace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/figure"
)

// suspendRole captures a process endlessly, with a stop or without one, and is suspended by SIGTSTP. It prints a line
// after every ten captures.
func suspendRole(args []string) int {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTSTP)
	go func() {
		for range signals {
			if err := Suspend(); err != nil {
				os.Stdout.WriteString(err.Error() + "\n")
				os.Exit(1)
			}
		}
	}()
	if len(args) == 1 {
		return captureRole(args)
	}
	pid, _ := strconv.Atoi(args[0])
	os.Stdout.WriteString("ready\n")
	for {
		for range 10 {
			if _, err := Observe(context.Background(), anyTarget(pid), Options{}); err != nil {
				os.Stdout.WriteString(err.Error() + "\n")
				return 1
			}
		}
		os.Stdout.WriteString("10\n")
	}
}

// TestSuspend suspends a program that captures all the time. It must be suspended while no target is stopped or
// interrupted by an event. It must continue afterwards.
func TestSuspend(t *testing.T) {
	for _, c := range []struct {
		target string
		how    []string
	}{{"sleep", nil}, {"busythreads", nil}, {"busy", []string{"observe"}}} {
		if c.how != nil && perfRegisters == nil {
			t.Log("no sampling here: not tried without a stop")
			continue
		}
		target := startTarget(t, c.target, "3")
		cmd := exec.Command(os.Args[0], append([]string{strconv.Itoa(target.pid)}, c.how...)...)
		cmd.Env = append(os.Environ(), roleVariable+"=suspend")
		child := startChild(t, cmd)
		times := full(100, 1000)
		for range times {
			for range 2 { // the first may have been written before it was suspended
				if line := child.line(t); line != "10" {
					t.Fatal(line)
				}
			}
			time.Sleep(randomTime(time.Millisecond))
			kill(t, child.pid, unix.SIGTSTP)
			untilState(t, child.pid, 'T')
			checkUnharmed(t, target.pid)
			if hasEvent(t, child.pid) {
				t.Error("it has an event while it is suspended")
			}
			kill(t, child.pid, unix.SIGCONT)
		}
		figure.Printf(t, "%s: %d times suspended while it was captured %s", c.target, times, strings.Join(c.how, " "))
	}
}

// hasEvent reports whether a process has an event of perf_event_open(2).
func hasEvent(t *testing.T, pid int) bool {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		to, _ := os.Readlink(file)
		return strings.Contains(to, "perf_event")
	})
}

// TestRestWaitsForWork checks that a rest waits for current work, and that new work waits. If the rest takes too long
// to begin, all work continues.
func TestRestWaitsForWork(t *testing.T) {
	var a activity
	a.begin()
	began := make(chan bool)
	next := func() {
		a.begin()
		a.end()
		close(began)
	}
	rested := errors.New("rested")
	do := func() error {
		go next()
		select {
		case <-began:
			return errors.New("something has begun meanwhile")
		case <-time.After(20 * time.Millisecond):
		}
		if err := a.suspend(time.Minute, func() error { return nil }); err != nil {
			return err
		}
		return rested
	}
	if err := a.suspend(time.Millisecond, do); !errors.Is(err, ErrBusy) {
		t.Errorf("while something is under way: %v", err)
	}
	a.begin()
	ended := make(chan error)
	go func() { ended <- a.suspend(time.Minute, do) }()
	until(t, "a rest is asked for", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.resting != nil
	})
	a.join()
	for range 3 {
		select {
		case err := <-ended:
			t.Fatalf("it has not waited: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
		a.end()
	}
	if err := <-ended; !errors.Is(err, rested) {
		t.Error(err)
	}
	<-began
}

// TestSamplerRests checks that a sampler takes no samples during a rest, does not count that time, and continues
// afterwards.
func TestSamplerRests(t *testing.T) {
	const span, rest, rate = time.Second, 1500 * time.Millisecond, 100
	s := newSampler(t, SamplerOptions{Interval: time.Second / rate, Duration: span, Batch: span / 10},
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
				rests <- pauseWork(time.Minute, func() error { time.Sleep(rest); return nil })
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
