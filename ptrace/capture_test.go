package ptrace

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

func TestCapture(t *testing.T) {
	for _, test := range []struct {
		args  []string
		state string // allowed values of Thread.State
	}{
		{[]string{"sleep"}, "SR"},
		{[]string{"busy"}, "R"},
		{[]string{"threads", "4"}, "SR"},
		{[]string{"churn"}, "SRD"},
	} {
		t.Run(test.args[0], func(t *testing.T) {
			c := startTarget(t, test.args...)
			for range 20 {
				s := mustCapture(t, c.pid, snapshot.Options{})
				thread := &s.Threads[0]
				if thread.Err != nil || thread.TID != c.pid || thread.Name != "target" {
					t.Fatalf("thread %d %q: %v", thread.TID, thread.Name, thread.Err)
				}
				if !contains(test.state, thread.State) {
					t.Errorf("state %c", thread.State)
				}
			}
		})
	}
}
func contains(states string, state byte) bool {
	for i := range len(states) {
		if states[i] == state {
			return true
		}
	}
	return false
}

// TestCaptureStopped checks that a process stopped by a signal can be captured, stays stopped, and can be continued.
func TestCaptureStopped(t *testing.T) {
	for _, sig := range []unix.Signal{unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU} {
		t.Run(sig.String(), func(t *testing.T) {
			c := startTarget(t, "threads", "3")
			for range 5 {
				kill(t, c.pid, sig)
				untilState(t, c.pid, 'T')
				for i := range 4 {
					s, err := Capture(context.Background(), anyTarget(c.pid), snapshot.Options{AllThreads: i%2 == 1, Deadline: patience})
					if err != nil {
						t.Fatal(err)
					}
					checkSnapshot(t, s)
					if s.Threads[0].State != 'T' {
						t.Errorf("state before the stop: %c", s.Threads[0].State)
					}
					checkDetached(t, c.pid)
					untilState(t, c.pid, 'T')
				}
				kill(t, c.pid, unix.SIGCONT)
				until(t, "continue", func() bool { return stateOf(t, c.pid) == 'S' })
				checkUnharmed(t, c.pid)
			}
		})
	}
}

// TestStopDuringCapture checks that a SIGSTOP during continuous captures stops the process, and that a SIGCONT
// continues it.
func TestStopDuringCapture(t *testing.T) {
	c := startTarget(t, "busy")
	stop := captureContinuously(t, c.pid, 1)
	for range 100 {
		kill(t, c.pid, unix.SIGSTOP)
		untilState(t, c.pid, 'T')
		kill(t, c.pid, unix.SIGCONT)
		untilState(t, c.pid, 'R')
	}
	stop()
	checkUnharmed(t, c.pid)
}

// captureContinuously captures until the returned function is called. That returns the number of captures.
func captureContinuously(t testing.TB, pid, routines int) func() int {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	counts := make([]int, routines)
	var group sync.WaitGroup
	for i := range routines {
		group.Go(func() {
			for ctx.Err() == nil {
				_, err := Capture(ctx, anyTarget(pid), snapshot.Options{AllThreads: i%2 == 1, Deadline: patience})
				switch {
				case err == nil:
					counts[i]++
				case errors.Is(err, context.Canceled), errors.Is(err, process.ErrExited):
				default:
					t.Error(err)
				}
				if runtime.NumCPU() == 1 {
					time.Sleep(100 * time.Microsecond) // else the target would hardly ever run
				}
			}
		})
	}
	return func() int {
		cancel()
		group.Wait()
		total := 0
		for _, n := range counts {
			total += n
		}
		return total
	}
}

func TestBadTargets(t *testing.T) {
	c := startTarget(t, "threads", "1")
	tids, err := process.Threads(c.pid)
	if err != nil || len(tids) != 2 {
		t.Fatal(tids, err)
	}
	own, err := process.Threads(unix.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	stat, err := process.ReadStat(c.pid)
	if err != nil {
		t.Fatal(err)
	}
	zombie := startTarget(t, "brief", "0")
	untilState(t, zombie.pid, 'Z')
	wrong := func(change func(*process.Target)) process.Target {
		target := process.Target{PID: c.pid, StartTime: stat.StartTime, PPID: stat.PPID, UID: unix.Getuid()}
		change(&target)
		return target
	}
	for _, test := range []struct {
		name   string
		target process.Target
		want   error
	}{
		{"zero", anyTarget(0), process.ErrInvalidPID},
		{"negative", anyTarget(-1), process.ErrInvalidPID},
		{"most negative", anyTarget(-1 << 63), process.ErrInvalidPID},
		{"too large", anyTarget(1 << 40), process.ErrInvalidPID},
		{"largest", anyTarget(1<<31 - 1), process.ErrExited},
		{"thread", anyTarget(tids[1]), process.ErrInvalidPID},
		{"self", anyTarget(unix.Getpid()), process.ErrSelf},
		{"own thread", anyTarget(own[len(own)-1]), process.ErrSelf},
		{"zombie", anyTarget(zombie.pid), process.ErrExited},
		{"kernel thread", anyTarget(2), process.ErrNotPermitted},
		{"right", wrong(func(*process.Target) {}), nil},
		{"start time", wrong(func(t *process.Target) { t.StartTime++ }), process.ErrRecycled},
		{"parent", wrong(func(t *process.Target) { t.PPID++ }), process.ErrRecycled},
		{"user", wrong(func(t *process.Target) { t.UID++ }), process.ErrRecycled},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, err := Capture(context.Background(), test.target, snapshot.Options{Deadline: patience})
			if !errors.Is(err, test.want) || (err == nil) != (s != nil) {
				t.Errorf("%v, want %v", err, test.want)
			}
			t.Log(err)
			checkUnharmed(t, c.pid)
		})
	}
}

// TestAllThreads: every thread, each with its own stack.
func TestAllThreads(t *testing.T) {
	for _, what := range []string{"threads", "busythreads"} {
		t.Run(what, func(t *testing.T) {
			c := startTarget(t, what, "30")
			for range 10 {
				s := mustCapture(t, c.pid, snapshot.Options{AllThreads: true})
				names := map[string]bool{}
				for i := range s.Threads {
					// On a busy machine a runnable thread may not stop in time.
					if err := s.Threads[i].Err; errors.Is(err, ErrDeadline) {
						t.Log(err)
					} else if err != nil {
						t.Error(err)
					}
					names[s.Threads[i].Name] = true
				}
				if len(s.Threads) != 31 || len(names) != 31 || s.Threads[0].TID != c.pid {
					t.Fatalf("%d threads, %d names, first %d", len(s.Threads), len(names), s.Threads[0].TID)
				}
			}
		})
	}
}

// TestManyLongStacks captures more stacks of 1 MiB than there is memory for. Each thread must have the innermost part
// of its stack. Each of the first ones has all of it.
func TestManyLongStacks(t *testing.T) {
	const threads, least = 80, 32 << 10
	c := startTarget(t, "deepthreads", strconv.Itoa(threads))
	s := mustCapture(t, c.pid, snapshot.Options{AllThreads: true, Deadline: time.Minute})
	if len(s.Threads) != threads+1 {
		t.Fatalf("%d threads", len(s.Threads))
	}
	long := 0
	for i := range s.Threads {
		th := &s.Threads[i]
		if th.Err != nil || i > 0 && (len(th.Stack.Data) < least || !th.Stack.Cut) {
			t.Errorf("thread %d: %d bytes, cut: %t, %v", i, len(th.Stack.Data), th.Stack.Cut, th.Err)
		}
		if len(th.Stack.Data) == 1<<20 {
			long++
		}
	}
	if long < threads/2 {
		t.Errorf("%d stacks of 1 MiB", long)
	}
}

// TestConcurrent captures different processes concurrently, and the same process one capture after the other.
func TestConcurrent(t *testing.T) {
	const processes, perProcess, rounds = 6, 3, 20
	var group sync.WaitGroup
	children := make([]*child, processes)
	for i := range children {
		children[i] = startTarget(t, "threads", strconv.Itoa(i))
		for range perProcess {
			group.Go(func() {
				for round := range rounds {
					s, err := Capture(context.Background(), anyTarget(children[i].pid),
						snapshot.Options{AllThreads: round%2 == 1, Deadline: time.Minute}) // an emulated machine may be busy for seconds
					if err != nil {
						t.Error(err)
						return
					}
					checkSnapshot(t, s)
				}
			})
		}
	}
	group.Wait()
	for _, c := range children {
		checkUnharmed(t, c.pid)
	}
}
func TestStackBounds(t *testing.T) {
	c := startTarget(t, "deep", "600")
	untilState(t, c.pid, 'S')
	whole := mustCapture(t, c.pid, snapshot.Options{}).Threads[0].Stack
	if whole.Cut || len(whole.Data) < 600<<10 {
		t.Errorf("cut %v, %d bytes", whole.Cut, len(whole.Data))
	}
	part := mustCapture(t, c.pid, snapshot.Options{MaxStack: 5000}).Threads[0].Stack
	if !part.Cut || len(part.Data) != 5000 || part.Start != whole.Start {
		t.Errorf("cut %v, %d bytes", part.Cut, len(part.Data))
	}
	if none := mustCapture(t, c.pid, snapshot.Options{RedZone: -1}).Threads[0].Stack; none.Start != whole.Start+redZone {
		t.Errorf("stack starts at %x without a red zone and at %x with it", none.Start, whole.Start)
	}
}

// TestGrownStack checks a stack that grew after the maps were read.
func TestGrownStack(t *testing.T) {
	c := startTarget(t, "grow")
	s, err := captureWith(context.Background(), anyTarget(c.pid), snapshot.Options{MaxStack: 8 << 20, Deadline: patience}, func(s step) {
		if s == stepMapped {
			c.line(t) // says that it has come down
			untilState(t, c.pid, 'S')
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	checkSnapshot(t, s)
	if stack := s.Threads[0].Stack; stack.Cut || len(stack.Data) < 4000<<10 {
		t.Errorf("cut %v, %d bytes", stack.Cut, len(stack.Data))
	}
}
func TestUnusualStacks(t *testing.T) {
	t.Run("sigaltstack in the heap", func(t *testing.T) {
		if s := mustCapture(t, startTarget(t, "elsewhere").pid, snapshot.Options{}); s.Threads[0].Err != nil {
			t.Error(s.Threads[0].Err)
		}
	})
	t.Run("at the start of a mapping", func(t *testing.T) {
		c := startTarget(t, "ragged")
		until(t, "stack pointer", func() bool {
			s := mustCapture(t, c.pid, snapshot.Options{})
			return len(s.Threads[0].Stack.Data)%4096 == 0 && len(s.Threads[0].Stack.Data) > 0
		})
	})
	t.Run("nowhere", func(t *testing.T) {
		c := startTarget(t, "nowhere")
		until(t, "stack pointer", func() bool {
			s := mustCapture(t, c.pid, snapshot.Options{})
			thread := &s.Threads[0]
			return errors.Is(thread.Err, snapshot.ErrNoStack) && len(thread.Registers) > 0 && thread.Stack.Data == nil
		})
	})
}
func TestReadMemory(t *testing.T) {
	c := startTarget(t, "sleep")
	untilState(t, c.pid, 'S')
	s := mustCapture(t, c.pid, snapshot.Options{})
	stack := s.Threads[0].Stack
	p := make([]byte, len(stack.Data))
	if n, err := process.ReadMemory(c.pid, stack.Start, p); n != len(p) || err != nil || string(p) != string(stack.Data) {
		t.Errorf("%d of %d, %v", n, len(p), err)
	}
	beyond := make([]byte, len(p)+1<<16)
	if n, err := process.ReadMemory(c.pid, stack.Start, beyond); n != len(p) || !errors.Is(err, unix.EFAULT) {
		t.Errorf("beyond the stack: %d of %d, %v", n, len(p), err)
	}
	for _, addr := range []uint64{0, 1<<64 - 1, 1<<64 - 1<<12, 1 << 63} {
		if n, err := process.ReadMemory(c.pid, addr, p); n != 0 || !errors.Is(err, unix.EFAULT) {
			t.Errorf("at %x: %d, %v", addr, n, err)
		}
	}
	if _, err := process.ReadMemory(1<<31-1, 0, p); !errors.Is(err, process.ErrExited) {
		t.Error(err)
	}
	if _, err := process.ReadMemory(-1, 0, p); !errors.Is(err, process.ErrInvalidPID) {
		t.Error(err)
	}
	if n, err := process.ReadMemory(c.pid, 0, nil); n != 0 || err != nil {
		t.Error(n, err)
	}
}
