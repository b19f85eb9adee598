//go:build amd64 || arm64

package probe

import (
	"debug/elf"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"reflect"
	"strconv"
	"sync"
	"testing"
	"time"
)

// probed is the function that the tests probe. Its first instruction must not run twice for a call.
//
//go:noinline
//go:nosplit
//go:norace
func probed(n int) { probedSum += n }

var probedSum int

// callsVariable has this program call probed so many times, and end.
const callsVariable = "PGSB_TEST_PROBE_CALLS"

func TestMain(m *testing.M) {
	if n, err := strconv.Atoi(os.Getenv(callsVariable)); err == nil {
		for i := range n {
			probed(i)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// openSession counts the calls of probed in this process and its children.
func openSession(t *testing.T, o Options, p Probe) *Session {
	t.Helper()
	file, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	if o.Postmaster == 0 {
		o.Postmaster = os.Getpid()
	}
	o.Points = []Point{
		{Probe: p, File: file, Offset: offsetOf(t, file)}, {Probe: p, File: file, Offset: offsetOf(t, file)},
	}
	s, err := Open(o)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrUnsupported) {
		t.Skipf("this host cannot run the programs: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// offsetOf finds the first instruction of probed in the file of this program.
func offsetOf(t *testing.T, file *os.File) uint64 {
	t.Helper()
	f, err := elf.NewFile(file)
	if err != nil {
		t.Fatal(err)
	}
	addr := uint64(reflect.ValueOf(probed).Pointer())
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && addr >= p.Vaddr && addr < p.Vaddr+p.Filesz {
			return addr - p.Vaddr + p.Off
		}
	}
	t.Skip("this program is position-independent")
	return 0
}

// call has a child call probed so many times and end. It returns the child's PID.
func call(t *testing.T, n int) int {
	t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), callsVariable+"="+strconv.Itoa(n))
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	return c.Process.Pid
}

// check ends a window.
func check(t *testing.T, s *Session) (over bool) {
	t.Helper()
	s.budget.judged = s.budget.judged.Add(-window)
	over, err := s.budget.check()
	if err != nil {
		t.Fatal(err)
	}
	return over
}

// TestEndedProcessesLeaveTable: the figures of a process that has ended leave the kernel's table, and the session has
// them unchanged. The entries for processes without room, and of a process that lives, stay.
func TestEndedProcessesLeaveTable(t *testing.T) {
	s := openSession(t, Options{}, Probe{})
	want := map[int]uint64{os.Getpid(): 2 * 5} // two points at one instruction
	for i := range 5 {
		probed(i)
	}
	for range 2 {
		for n := 1; n <= 3; n++ {
			want[call(t, 100*n)] = 2 * 100 * uint64(n)
		}
		check(t, s)
		table, err := s.programs.Figures()
		if err != nil {
			t.Fatal(err)
		}
		for key := range table {
			if pid := key.Process.PID; pid != 0 && pid != os.Getpid() {
				t.Errorf("process %d has ended and is in the table", pid)
			}
		}
		if len(table) != 4 {
			t.Errorf("%d entries in the table, not two of this process and two for processes without room", len(table))
		}
		figures, err := s.Figures()
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[int]uint64)
		for key, f := range figures {
			got[key.Process.PID] += f.Hits
		}
		if !maps.Equal(got, want) {
			t.Errorf("hits %v, not %v", got, want)
		}
	}
}

// TestLimitForShortProcesses: the probe is removed if processes that live for less than a window pay too much for it.
func TestLimitForShortProcesses(t *testing.T) {
	var notices []Notice
	s := openSession(t, Options{MaxOverhead: 0.01, Notice: func(n Notice) { notices = append(notices, n) }}, Probe{})
	for deadline := time.Now().Add(3 * time.Minute); !check(t, s); call(t, 100_000) {
		if time.Now().After(deadline) {
			t.Fatal("the probe was not removed")
		}
	}
	if len(notices) == 0 || !notices[0].Removed || notices[0].PID != 0 || notices[0].Overhead <= 0.01 {
		t.Errorf("%+v", notices)
	}
}

// TestOtherServersPay: hits of processes that are not the postmaster's are counted for themselves, and too many of them
// end the probe. The postmaster here is a process that only sleeps.
func TestOtherServersPay(t *testing.T) {
	var notices []Notice
	sleeper := exec.Command("sleep", "1000")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() })
	s := openSession(t, Options{
		MaxOverhead: 0.01, Postmaster: sleeper.Process.Pid, Notice: func(n Notice) { notices = append(notices, n) },
	}, Probe{})
	hits := func(want uint64) {
		t.Helper()
		figures, err := s.Figures()
		if err != nil || len(figures) != 0 {
			t.Errorf("the postmaster has hits: %v, %v", figures, err)
		}
		if got, err := s.Others(); err != nil || got[0] != want {
			t.Errorf("%v hits of others, not %d; %v", got, want, err)
		}
	}
	for i := range 5 {
		probed(i)
	}
	call(t, 100)
	hits(2 * 105) // two points at one instruction
	check(t, s)   // takes the child out of the table
	hits(2 * 105)
	for i := range 200_000 { // in a process that lives
		probed(i)
	}
	if check(t, s) != true || len(notices) == 0 || !notices[0].Removed || notices[0].PID != os.Getpid() ||
		!notices[0].Other {
		t.Errorf("the probe was not removed: %+v", notices)
	}
	before, err := s.Others()
	if err != nil {
		t.Fatal(err)
	}
	probed(1)
	hits(before[0])
}

// TestPastIsBounded: beyond the bound the figures of ended processes count for Process{}, once.
func TestPastIsBounded(t *testing.T) {
	t.Parallel()
	s := &Session{past: make(map[Key]Figures)}
	sums := make(map[Key]Figures)
	const more = 10
	for pid := 1; pid <= maxPast+more; pid++ {
		sums[Key{0, Process{PID: pid}}] = Figures{Hits: 3}
	}
	for pid := 1; pid <= maxPast+more; pid++ {
		for probe := range 2 { // two probes of a group, with a hit since sums were read
			s.addPast(Key{0, Process{PID: pid}}, Figures{Hits: 1 + 2*uint64(probe)}, sums)
		}
	}
	rest := Key{}
	if len(s.past) != maxPast+1 || s.past[rest].Hits != 4*more {
		t.Errorf("%d processes are kept, and %d hits count for others", len(s.past), s.past[rest].Hits)
	}
	if len(sums) != maxPast+1 || sums[rest].Hits != 3*more {
		t.Errorf("the sums have %d processes, and %d hits of others", len(sums), sums[rest].Hits)
	}
	for key, f := range s.past {
		if key != rest && f.Hits != 4 {
			t.Fatalf("%+v has %d hits", key, f.Hits)
		}
	}
}

// TestUncountedThreadEndsSession: an older kernel does not count the hits of a thread that a process has started later.
func TestUncountedThreadEndsSession(t *testing.T) {
	s := openSession(t, Options{}, Probe{})
	s.programs.Uprobes.MainThreadOnly = true
	check(t, s) // the probes are attached for all processes
	s.options.Postmaster, s.options.PIDs = 0, []int{os.Getpid()}
	s.budget.judged = s.budget.judged.Add(-window)
	if _, err := s.budget.check(); !errors.Is(err, ErrUnsupported) {
		t.Errorf("a process with several threads: %v", err)
	}
}

// TestSlowNames: the probes are removed at the end time, even while the name of a stack is being looked up. All hits
// are accounted for, also hits that are dropped because the names take too long.
func TestSlowNames(t *testing.T) {
	for name, finish := range map[string]time.Duration{"patient": finishTime, "impatient": 100 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			s := openSession(t, Options{}, Probe{Stack: true})
			s.finishTime = finish
			ended := make(chan error, 1)
			began := time.Now()
			const duration = time.Second
			named := make(chan struct{})
			goOn := sync.OnceFunc(func() { close(named) })
			defer goOn()
			taken := uint64(0)
			go func() {
				ended <- s.Run(t.Context(), duration, func(*Hit) error {
					if taken++; taken == 1 {
						<-named
					}
					return nil
				}, nil)
			}()
			hits := func() (n uint64) {
				figures, err := s.Figures()
				if err != nil {
					t.Error(err)
				}
				for _, f := range figures {
					n += f.Hits
				}
				return n
			}
			for before, now := uint64(0), uint64(1); before != now || now == 0 || time.Since(began) < duration; {
				if time.Since(began) > 3*time.Minute {
					t.Fatalf("the probes are still there: %d hits, then %d", before, now)
				}
				before = hits()
				for range 1000 {
					probed(1)
				}
				now = hits()
			}
			time.Sleep(time.Second) // of the lookup: longer than the impatient session waits
			during := time.Since(began)
			select {
			case err := <-ended:
				t.Fatalf("the session ended during the lookup: %v", err)
			default:
			}
			goOn()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if took := s.Took(); took < duration || took > during {
				t.Errorf("the probes counted for %v, and after %v the lookup went on", took, during)
			}
			figures, err := s.Figures()
			if err != nil {
				t.Fatal(err)
			}
			var sum Figures
			for _, f := range figures {
				sum.Add(f)
			}
			if sum.Hits != sum.Stacks+sum.Lost+sum.Skipped || sum.Stacks != taken {
				t.Errorf("%+v, %d were taken", sum, taken)
			}
		})
	}
}
