package capture

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/unwind"
	"pg_stat_backtrace/unwind/golang"
	"pg_stat_backtrace/worker/naming"
)

// withoutTable is a process of which the function tables of Go are not known.
type withoutTable struct{ *naming.Space }

func (w withoutTable) Find(addr uint64) (unwind.Module, bool) {
	m, ok := w.Space.Find(addr)
	m.Go = nil
	return m, ok
}

// TestOracleGoTable captures a busy Go program at random times. The frames by Go's function table must equal those by
// call frame information, up to a switch of stacks, which only the table follows. Every stack must end at the base of
// a Go stack.
func TestOracleGoTable(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a build of Go's own library: not with -short")
	}
	exe := filepath.Join(t.TempDir(), "busy")
	cmd := exec.Command("go", "build", "-o", exe, "./testdata/gobusy")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd = exec.Command(exe)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	c, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	n := goTally{ends: map[string]int{}}
	rounds := 50
	if os.Getenv("PGSB_ORACLE_SLOW") != "" {
		rounds = 5000
	}
	for range rounds {
		snap, err := ptrace.Capture(t.Context(), process.Target{PID: cmd.Process.Pid, UID: -1},
			snapshot.Options{
				AllThreads: true, RedZone: c.arch.RedZone, MaxStack: 64 << 10, Deadline: pgtest.Patience,
			})
		if err != nil {
			t.Fatal(err)
		}
		space := c.processes.Open(snap.PID, 0, snap.Maps)
		for i := range snap.Threads {
			if snap.Threads[i].Registers != nil {
				n.compare(t, c, &snap.Threads[i], space)
			}
		}
		time.Sleep(time.Millisecond) // for the program to get on
	}
	figure.Printf(t, "%d stacks, %d frames of the same address and CFA, %d past a signal handler, %d past a switch of "+
		"stacks; ends: %v", n.stacks, n.same, n.signals, n.switches, n.ends)
	if n.same < n.stacks || n.stacks == 0 {
		t.Error("too few frames were compared")
	}
}

type goTally struct {
	stacks, same      int
	signals, switches int // of the stacks that continue after one
	ends              map[string]int
}

func (n *goTally) compare(t *testing.T, c *Capturer, th *snapshot.Thread, space *naming.Space) {
	t.Helper()
	u := unwind.Unwinder{Arch: c.arch}
	regs, err := c.arch.DecodePRStatus(th.Registers)
	if err != nil {
		t.Fatal(err)
	}
	mem := newMemory(th, nil, c.arch)
	got, stop := u.Unwind(nil, regs, mem, space)
	want, _ := u.Unwind(nil, regs, mem, withoutTable{space})
	n.stacks++
	named, _ := space.Name(got, 1000, nil)
	last := strings.TrimSuffix(named[len(named)-1].Function, ".abi0")
	for i := range got[:len(got)-1] {
		if got[i].Signal {
			n.signals++
		}
		if f := goFunctionOf(space, &got[i]); f != nil && i > 0 && f.Flags&golang.SPWrite != 0 {
			n.switches++
		}
	}
	end := stop.Reason.String() + " " + last
	if stop.Reason == unwind.NoMemory || stop.Reason == unwind.StackSwitch {
		end = stop.Reason.String()
	}
	n.ends[end]++
	switch {
	case stop.Whole() && (last == "runtime.goexit" || last == "runtime.mstart" || last == "runtime.mcall" ||
		last == "runtime.morestack" || last == "runtime.rt0_go" || strings.HasPrefix(last, "_rt0_")):
	case stop.Reason == unwind.NoMemory, stop.Reason == unwind.StackSwitch:
	default:
		t.Errorf("%s: %+v", stop, named)
	}
	for i := range min(len(got), len(want)) {
		if got[i].PC != want[i].PC {
			t.Errorf("frame %d is at 0x%x, by call frame information at 0x%x: %+v", i, got[i].PC, want[i].PC, named)
			return
		}
		f := goFunctionOf(space, &got[i])
		if got[i].Signal || f != nil && f.Flags&(golang.SPWrite|golang.TopFrame) != 0 {
			return // they may differ from here
		}
		if got[i].CFA != want[i].CFA && want[i].CFA != 0 && got[i].CFA != 0 {
			t.Errorf("frame %d has its CFA at 0x%x, by call frame information at 0x%x: %+v", i, got[i].CFA, want[i].CFA,
				named)
		}
		n.same++
	}
}

// goFunctionOf returns the Go function of a frame.
func goFunctionOf(space *naming.Space, f *unwind.Frame) *golang.Function {
	_, where, ok := space.Lookup(f.Lookup())
	if !ok || where.Module == nil || !space.IsGo(where.Module) {
		return nil
	}
	table, _ := where.Module.GoTable(nil)
	fn, err := table.Find(f.Lookup() - where.Bias)
	if err != nil {
		return nil
	}
	return fn
}
