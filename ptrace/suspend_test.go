package ptrace

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/figure"
)

// suspendRole captures as captureRole does, and is suspended by SIGTSTP.
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
	return captureRole(args)
}

// TestSuspend: a program that captures all the time is suspended while it holds nobody, and goes on afterwards.
func TestSuspend(t *testing.T) {
	for _, what := range []string{"sleep", "busythreads"} {
		target := startTarget(t, what, "3")
		cmd := exec.Command(os.Args[0], strconv.Itoa(target.pid))
		cmd.Env = append(os.Environ(), roleVariable+"=suspend")
		c := startChild(t, cmd)
		times := full(100, 1000)
		for range times {
			for range 2 { // the first may have been written before it was suspended
				if line := c.line(t); line != "10" {
					t.Fatal(line)
				}
			}
			time.Sleep(randomTime(time.Millisecond))
			kill(t, c.pid, unix.SIGTSTP)
			untilState(t, c.pid, 'T')
			checkUnharmed(t, target.pid)
			kill(t, c.pid, unix.SIGCONT)
		}
		figure.Printf(t, "%s: %d times suspended while it was captured", what, times)
	}
}

// TestRest: what is under way is waited for, what would begin waits, and all goes on if it took too long.
func TestRest(t *testing.T) {
	a := activity{}
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
		if err := a.rest(time.Minute, func() error { return nil }); err != nil {
			return err
		}
		return rested
	}
	if err := a.rest(time.Millisecond, do); !errors.Is(err, ErrBusy) {
		t.Errorf("while something is under way: %v", err)
	}
	a.begin()
	ended := make(chan error)
	go func() { ended <- a.rest(time.Minute, do) }()
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

// TestSamplerRests: a sampler takes no samples while it rests, which does not count, and goes on afterwards.
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
				rests <- work.rest(time.Minute, func() error { time.Sleep(rest); return nil })
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
