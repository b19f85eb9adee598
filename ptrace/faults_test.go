package ptrace

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// full is the number of repetitions: few, or with PGSB_FAULTS=full (make check-soak) the number in the documentation.
func full(few, many int) int {
	if os.Getenv("PGSB_FAULTS") == "full" {
		return many
	}
	return few
}

// counts counts events by name.
type counts map[string]int

func (c counts) String() string {
	text := make([]string, 0, len(c))
	for _, what := range slices.Sorted(maps.Keys(c)) {
		text = append(text, fmt.Sprintf("%d %s", c[what], what))
	}
	return strings.Join(text, ", ")
}

// randomTime is a time of at most limit.
func randomTime(limit time.Duration) time.Duration {
	return time.Duration(rand.Int64N(int64(limit)))
}

// TestFaultKilledCapturer kills a capturing process at random moments. It is stopped just before, to record the phase
// of the capture: the target is stopped, attached, or neither. Afterwards no thread of the target may be stopped or
// traced.
func TestFaultKilledCapturer(t *testing.T) {
	targets := map[string]*child{}
	for _, what := range []string{"sleep", "busy", "threads", "busythreads"} {
		targets[what] = startTarget(t, what, "3")
	}
	found := counts{}
	for i := range full(40, 1000) {
		what := slices.Sorted(maps.Keys(targets))[i%len(targets)]
		pid := targets[what].pid
		tracer := startChild(t, actor("capture", strconv.Itoa(pid)))
		time.Sleep(randomTime(2 * time.Millisecond))
		kill(t, tracer.pid, unix.SIGSTOP)
		until(t, "the capturer is stopped", func() bool { return stateOf(t, tracer.pid) == 'T' })
		found[momentOf(t, pid)]++
		kill(t, tracer.pid, unix.SIGKILL)
		_ = tracer.Wait()
		checkUnharmed(t, pid)
	}
	figure.Printf(t, "%d capturers killed: %v", full(40, 1000), found)
	for _, c := range targets {
		mustCapture(t, c.pid, snapshot.Options{AllThreads: true})
	}
}

// momentOf returns the phase that a process's capture is in, while the capture is suspended.
func momentOf(t *testing.T, pid int) string {
	t.Helper()
	tids, err := process.Threads(pid)
	if err != nil {
		t.Fatal(err)
	}
	moment := "between two captures"
	for _, tid := range tids {
		status, err := process.ReadTaskStatus(pid, tid)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case status.TracerPID != 0 && status.State == 't':
			return "while the target stood still"
		case status.TracerPID != 0:
			moment = "while the target was attached and ran"
		}
	}
	return moment
}

// TestFaultKilledTarget kills processes at random moments of continuous captures. Each capture must succeed, or
// report that the process has exited. The process's parent must see its end.
func TestFaultKilledTarget(t *testing.T) {
	outcomes := counts{}
	for i := range full(60, 2000) {
		c := startTarget(t, []string{"sleep", "busy", "threads", "churn"}[i%4], "3")
		ended := make(chan error)
		captured := 0
		go func() {
			for {
				_, err := Capture(context.Background(), anyTarget(c.pid), snapshot.Options{AllThreads: i%8 >= 4, Deadline: patience})
				if err != nil {
					ended <- err
					return
				}
				captured++
			}
		}()
		time.Sleep(randomTime(2 * time.Millisecond))
		kill(t, c.pid, unix.SIGKILL)
		if err := <-ended; !errors.Is(err, process.ErrExited) {
			t.Errorf("after %d captures: %v", captured, err)
		}
		state, err := c.Process.Wait()
		if err != nil || !isKilled(state) {
			t.Errorf("the parent sees %v, %v", state, err)
		}
		outcomes["targets killed"]++
		outcomes["captures before"] += captured
	}
	figure.Printf(t, "%v", outcomes)
}

// TestFaultGroupStop stops and continues a counting process at random moments of captures. The process must stay
// stopped during all captures. It must not count until SIGCONT comes, and must count afterwards.
func TestFaultGroupStop(t *testing.T) {
	c := startTarget(t, "counting")
	var address uint64
	if _, err := fmt.Sscanf(c.first, "ready 0x%x", &address); err != nil {
		t.Fatal(c.first, err)
	}
	count := func() uint64 {
		var word [8]byte
		if _, err := process.ReadMemory(c.pid, address, word[:]); err != nil {
			t.Fatal(err)
		}
		return binary.NativeEndian.Uint64(word[:])
	}
	stop := captureContinuously(t, c.pid, 2)
	n := full(200, 10_000)
	for range n {
		time.Sleep(randomTime(200 * time.Microsecond))
		kill(t, c.pid, unix.SIGSTOP)
		untilState(t, c.pid, 'T')
		before := count()
		time.Sleep(randomTime(300 * time.Microsecond))
		if after := count(); after != before {
			t.Fatalf("a stopped process has counted from %d to %d", before, after)
		}
		kill(t, c.pid, unix.SIGCONT)
		until(t, "it counts again", func() bool { return count() != before })
	}
	figure.Printf(t, "%d group-stops, each ended by SIGCONT, in %d captures", n, stop())
	checkUnharmed(t, c.pid)
}

// held are the resources of this process that can leak.
type held struct {
	descriptors, threads int
	resident             int // KiB
}

func holding(t *testing.T) (h held) {
	t.Helper()
	descriptors, err1 := os.ReadDir("/proc/self/fd")
	threads, err2 := os.ReadDir("/proc/self/task")
	status, err3 := os.ReadFile("/proc/self/status")
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmRSS:")
	if _, err := fmt.Sscan(after, &h.resident); err != nil {
		t.Fatal(err)
	}
	h.descriptors, h.threads = len(descriptors), len(threads)
	return h
}

// TestFaultLeak captures up to a million times, in every way and with every outcome, and counts leaked resources.
func TestFaultLeak(t *testing.T) {
	sleeper, threads := startTarget(t, "sleep"), startTarget(t, "threads", "3")
	traced, gone := startTarget(t, "sleep"), startTarget(t, "brief", "0")
	startTarget(t, "tracer", strconv.Itoa(traced.pid))
	untilState(t, gone.pid, 'Z')
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	n, outcomes := full(3000, 1_000_000), counts{}
	var before held
	var layout *snapshot.MapsSnapshot
	began := time.Now()
	for i := range n {
		if i == n/10 { // by then every cache is full
			before = holding(t)
		}
		engine, ctx, pid, o := Capture, context.Background(), sleeper.pid, snapshot.Options{MapsSnapshot: layout, Deadline: patience}
		switch i % 50 {
		case 0:
			o.MapsSnapshot = nil
		case 10, 30:
			pid, o = threads.pid, snapshot.Options{AllThreads: true, Deadline: patience}
		case 20:
			pid = traced.pid
		case 25:
			engine, pid = observe.Observe, traced.pid
		case 40:
			pid = gone.pid
		case 45:
			ctx = canceled
		}
		s, err := engine(ctx, anyTarget(pid), o)
		switch {
		case err == nil && pid == sleeper.pid:
			layout = s.MapsSnapshot
			outcomes["captured"]++
		case err == nil && pid == threads.pid:
			outcomes["captured with all threads"]++
		case err == nil:
			outcomes["observed"]++
		case errors.Is(err, process.ErrTraced), errors.Is(err, process.ErrExited), errors.Is(err, context.Canceled):
			outcomes["refused as they had to be"]++
		default:
			t.Fatal(err)
		}
	}
	tooMuch := func(now held) bool {
		return now.descriptors > before.descriptors || now.threads > before.threads+4 || now.resident > before.resident+32<<10
	}
	after := holding(t)
	for end := time.Now().Add(10 * time.Second); tooMuch(after) && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		after = holding(t) // a process that has just been read may still be open
	}
	figure.Printf(t, "%d captures in %v: %v; descriptors %d, then %d; threads %d, then %d; resident %d KiB, then %d", n,
		time.Since(began).Round(time.Second), outcomes, before.descriptors, after.descriptors, before.threads, after.threads,
		before.resident, after.resident)
	if tooMuch(after) {
		t.Errorf("held %+v, then %+v", before, after)
	}
	checkUnharmed(t, sleeper.pid)
}
