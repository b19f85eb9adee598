package waits

import (
	"debug/elf"
	"errors"
	"os"
	"reflect"
	"testing"
	"time"

	"pg_stat_backtrace/ptrace/process"
)

// executorPrograms loads programs for children of this process. Two functions stand for the executor.
func executorPrograms(t *testing.T) *programs {
	t.Helper()
	needPrograms(t, atSwitches)
	s := childServer()
	s.ExecutorStart, s.ExecutorEnd = placeOf(t, standIn), placeOf(t, otherCalls)
	s.OpenProgram = func() (*os.File, error) { return os.Open(os.Args[0]) }
	p, err := loadPrograms(s, atSwitches)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// placeOf returns the place of a function in the file of this program.
func placeOf(t *testing.T, function any) uint64 {
	t.Helper()
	file, err := elf.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if file.Type != elf.ET_EXEC {
		t.Skip("this program is loaded at a random address")
	}
	at := uint64(reflect.ValueOf(function).Pointer())
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_LOAD && segment.Vaddr <= at && at < segment.Vaddr+segment.Filesz {
			return at - segment.Vaddr + segment.Off
		}
	}
	t.Fatal("the function is not in the file")
	return 0
}

// probeChild attaches to the executor of a new child.
func probeChild(t *testing.T, p *programs) (c *child, pid int) {
	t.Helper()
	c = startChild(t)
	pid = c.command.Process.Pid
	if err := p.ProbeExecutor(pid, true); errors.Is(err, errPrograms) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	return c, pid
}

// end ends a child and waits for it.
func (c *child) end(t *testing.T) {
	t.Helper()
	if err := c.in.Close(); err != nil {
		t.Fatal(err)
	}
	_ = c.command.Wait()
}

func startTime(t *testing.T, pid int) uint64 {
	t.Helper()
	started, err := startOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	return started
}

// executorRecords counts the records of the executor so far.
func executorRecords(p *programs) (n int) {
	for {
		r, ok := p.Record(time.Now())
		if !ok {
			return n
		}
		if r.Kind == ExecutorStart || r.Kind == ExecutorEnd {
			n++
		}
	}
}

// TestProbeEndsWithProcess expects that the probe of a process ends when the process has ended, and not before.
func TestProbeEndsWithProcess(t *testing.T) {
	p := executorPrograms(t)
	c, _ := probeChild(t, p)
	now := time.Now()
	if err := p.EndProbesOfEnded(now); err != nil || len(p.probes) != 1 {
		t.Errorf("%d probes of a living process, %v", len(p.probes), err)
	}
	c.end(t)
	if err := p.EndProbesOfEnded(now); err != nil || len(p.probes) != 1 {
		t.Errorf("%d probes, %v: the processes are read too often", len(p.probes), err)
	}
	if err := p.EndProbesOfEnded(now.Add(probeInterval)); err != nil || len(p.probes) != 0 {
		t.Errorf("%d probes of ended processes, %v", len(p.probes), err)
	}
}

// TestProbeOffAfterProcess ends the probe of a process that has ended.
func TestProbeOffAfterProcess(t *testing.T) {
	p := executorPrograms(t)
	c, pid := probeChild(t, p)
	c.end(t)
	if err := p.ProbeExecutor(pid, false); err != nil || len(p.probes) != 0 {
		t.Errorf("%d probes, %v", len(p.probes), err)
	}
	if err := p.ProbeExecutor(pid, true); !errors.Is(err, process.ErrGone) || len(p.probes) != 0 {
		t.Errorf("a probe of an ended process: %d probes, %v", len(p.probes), err)
	}
}

// TestProbeOfReusedID gives a process the probe of an ended one with the same id. The process has to get its own.
func TestProbeOfReusedID(t *testing.T) {
	p := executorPrograms(t)
	first, old := probeChild(t, p)
	stale := p.probes[old]
	delete(p.probes, old)
	first.end(t)

	second := startChild(t)
	pid := second.command.Process.Pid
	if stale.started == startTime(t, pid) {
		stale.started-- // both have started in the same tick
	}
	p.probes[pid] = stale
	if err := p.Attach(); err != nil {
		t.Fatal(err)
	}
	if err := p.ProbeExecutor(pid, true); err != nil {
		t.Fatal(err)
	}
	if l := p.probes[pid].link; l == stale.link {
		t.Error("the probe is the ended process's")
	}
	second.do(t, "sleep", 1) // gives it its slot
	_ = executorRecords(p)
	for range 3 {
		second.do(t, "sleep", 1)
	}
	if n := executorRecords(p); n != 3 {
		t.Errorf("%d records of 3 runs", n)
	}
}
