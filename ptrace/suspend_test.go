package ptrace

import (
	"context"
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
	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/snapshot"
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
			if _, err := observe.Observe(context.Background(), anyTarget(pid), snapshot.Options{Deadline: patience}); err != nil {
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
		if c.how != nil && !sampled {
			t.Log("no sampling here: not tried without a stop")
			continue
		}
		target := startTarget(t, c.target, "3")
		cmd := exec.Command(os.Args[0], append([]string{strconv.Itoa(target.pid)}, c.how...)...)
		cmd.Env = append(os.Environ(), roleVariable+"=suspend")
		child := startChild(t, cmd)
		times := full(15, 1000)
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
