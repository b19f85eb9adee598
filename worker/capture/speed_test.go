package capture

import (
	"errors"
	"io"
	"math"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/worker/naming"
)

// deepProcesses starts testdata/nest.c that many times, each process the given number of calls deep.
func deepProcesses(tb testing.TB, count int, depth string, flags ...string) []int {
	tb.Helper()
	exe := filepath.Join(tb.TempDir(), "nest")
	arguments := slices.Concat([]string{"-O1", "-o", exe, "testdata/nest.c"}, flags)
	compile := exec.CommandContext(tb.Context(), "gcc", arguments...)
	if out, err := compile.CombinedOutput(); err != nil {
		tb.Fatalf("gcc: %v\n%s", err, out)
	}
	pids := make([]int, count)
	for i := range pids {
		pids[i] = startReady(tb, exe, "deep", depth)
	}
	return pids
}

// startReady starts a program that writes a byte when it is ready, and ends it with the test.
func startReady(tb testing.TB, exe string, args ...string) int {
	tb.Helper()
	cmd := exec.Command(exe, args...)
	ready, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := io.ReadFull(ready, make([]byte, 1)); err != nil {
		tb.Fatal(err)
	}
	return cmd.Process.Pid
}

// snapshotOf returns the input of unwinding: a stack of about that many frames, and the place of its code.
func snapshotOf(tb testing.TB, depth string, flags ...string) (
	c *Capturer, snap *snapshot.Snapshot, sp *naming.Space,
) {
	tb.Helper()
	pid := deepProcesses(tb, 1, depth, flags...)[0]
	c, err := New(Config{})
	if err != nil {
		tb.Fatal(err)
	}
	stat, err := process.ReadStat(pid)
	for deadline := time.Now().Add(3 * time.Minute); err == nil && stat.State != 'S' && time.Now().Before(deadline); {
		stat, err = process.ReadStat(pid)
	}
	if err != nil {
		tb.Fatal(err)
	}
	snap, err = ptrace.Capture(tb.Context(), process.Target{PID: pid, UID: -1}, snapshot.Options{
		Deadline: pgtest.Patience,
	})
	if err != nil {
		tb.Fatal(err)
	}
	return c, snap, c.processes.Open(pid, stat.StartTime, snap.Maps)
}

// familiar marks the innermost image as prefetched, so that its names are not read while the snapshot is unwound.
func familiar(tb testing.TB, c *Capturer, snap *snapshot.Snapshot, sp *naming.Space) {
	tb.Helper()
	regs, err := c.arch.DecodePRStatus(snap.Threads[0].Registers)
	if err != nil {
		tb.Fatal(err)
	}
	pc, _ := regs.Get(c.arch.PC)
	_, where, ok := sp.Lookup(pc)
	if !ok || where.Module == nil {
		tb.Fatalf("no image at %#x", pc)
	}
	where.Module.Prefetched.Store(true)
}

// bare are compiler flags for code without call frame information and frame pointers.
var bare = []string{"-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fomit-frame-pointer"}

// TestUnwindingAllocates checks that the allocations of a walk do not depend on the number of frames, once the
// effects of their code are cached.
func TestUnwindingAllocates(t *testing.T) {
	for name, flags := range map[string][]string{"": nil, ", of code without call frame information": bare} {
		allocations := map[string]float64{}
		for _, depth := range []string{"5", "100"} {
			c, snap, sp := snapshotOf(t, depth, flags...)
			familiar(t, c, snap, sp)
			u := unwind.Unwinder{Arch: c.arch}
			frames := make([]unwind.Frame, 0, 256)
			walk := func() {
				var stop unwind.Stop
				if frames, stop = c.unwindThread(frames[:0], &u, &snap.Threads[0], nil, sp); !stop.Whole() {
					t.Fatalf("%v after %d frames", stop, len(frames))
				}
			}
			walk()
			allocations[depth] = math.Inf(1)
			for range 5 { // what else runs in this process allocates, too
				allocations[depth] = min(allocations[depth], testing.AllocsPerRun(50, walk))
			}
		}
		if allocations["5"] != allocations["100"] {
			t.Errorf("unwinding allocates %v times in the shallow stack, %v in the deep one%s", allocations["5"],
				allocations["100"], name)
		}
	}
}

// BenchmarkUnwind walks a warm stack, BenchmarkName names its frames; both of 30.
func BenchmarkUnwind(b *testing.B) {
	for name, flags := range map[string][]string{"CFI": nil, "instructions": bare} {
		b.Run(name, func(b *testing.B) {
			c, snap, sp := snapshotOf(b, "21", flags...)
			familiar(b, c, snap, sp)
			u := unwind.Unwinder{Arch: c.arch}
			frames := make([]unwind.Frame, 0, 256)
			b.ReportAllocs()
			for b.Loop() {
				frames, _ = c.unwindThread(frames[:0], &u, &snap.Threads[0], nil, sp)
			}
			b.ReportMetric(float64(len(frames)), "frames")
		})
	}
}

func BenchmarkName(b *testing.B) {
	c, snap, sp := snapshotOf(b, "21")
	u := unwind.Unwinder{Arch: c.arch}
	frames, _ := c.unwindThread(nil, &u, &snap.Threads[0], nil, sp)
	_, _ = sp.Name(frames, unwind.DefaultMaxFrames, nil) // loads the symbols
	b.ReportAllocs()
	for b.Loop() {
		_, _ = sp.Name(frames, unwind.DefaultMaxFrames, nil)
	}
	b.ReportMetric(float64(len(frames)), "frames")
}

// BenchmarkThousand captures, unwinds and names a thousand known processes, as many side by side as there are CPUs.
func BenchmarkThousand(b *testing.B) {
	pids := deepProcesses(b, 1000, "20")
	c, err := New(Config{})
	if err != nil {
		b.Fatal(err)
	}
	all := func() {
		var next, failed atomic.Int64
		var group sync.WaitGroup
		for range runtime.GOMAXPROCS(0) {
			group.Go(func() {
				for i := next.Add(1) - 1; i < int64(len(pids)); i = next.Add(1) - 1 {
					t, err := c.Capture(b.Context(), process.Target{PID: pids[i], UID: -1}, Options{})
					if err != nil || !t.Threads[0].Whole {
						failed.Add(1)
					}
				}
			})
		}
		group.Wait()
		if n := failed.Load(); n > 0 {
			b.Fatalf("%d captures failed", n)
		}
	}
	all()
	b.ReportAllocs()
	for b.Loop() {
		all()
	}
	b.ReportMetric(heapMB(), "MB-heap")
}

// BenchmarkCold measures the first capture of a server by a new worker. At the end it prints how much memory the
// caches of all servers take.
func BenchmarkCold(b *testing.B) {
	together, err := New(Config{})
	if err != nil {
		b.Fatal(err)
	}
	servers := pgtest.BinDirs(b)
	for _, binDir := range servers {
		server := pgtest.Start(b, binDir, pgtest.Options{})
		processes, err := process.Children(server.PostmasterPID())
		if err != nil || len(processes) == 0 {
			b.Fatalf("no processes: %v", err)
		}
		stays := 0
		for _, pid := range processes {
			_, err := together.Capture(b.Context(), process.Target{PID: pid, UID: -1}, Options{})
			switch {
			case err == nil && stays == 0:
				stays = pid // the oldest lives as long as the server
			case err == nil:
			case !errors.Is(err, process.ErrExited):
				b.Fatal(err)
			}
		}
		b.Run(pgtest.Version(b, binDir), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c, err := New(Config{})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := c.Capture(b.Context(), process.Target{PID: stays, UID: -1}, Options{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Logf("%d servers: %.1f MB of heap", len(servers), heapMB())
	runtime.KeepAlive(together)
}

// heapMB returns the size of the heap that the garbage collector cannot free.
func heapMB() float64 {
	var m runtime.MemStats
	runtime.GC()
	time.Sleep(time.Millisecond) // finalizers
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}
