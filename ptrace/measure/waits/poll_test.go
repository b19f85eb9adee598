package waits

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"pg_stat_backtrace/ptrace/process"
)

// TestPolledProcessEnds: the PGPROC of an ended process keeps its process id, as until PostgreSQL 16. The process must not count as a
// live one, also if another process has its id now.
func TestPolledProcessEnds(t *testing.T) {
	const event = 7
	command := exec.Command("sleep", "3600")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	pid := command.Process.Pid
	t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
	w := &poller{procs: &procs{Server: &Server{}, count: 2}, slots: make(map[int]*polled), ended: make(table)}
	waits := []uint32{event, uint32(pid), event, uint32(os.Getpid())}
	w.take(waits, time.Second)
	if s := w.snapshot(); len(s.Processes) != 2 || len(s.Ended) != 0 {
		t.Fatalf("%+v", s)
	}
	if !w.Reset(pid) || w.slots[0].resets != 1 || w.slots[1].resets != 0 {
		t.Fatalf("reset: %+v", w.snapshot())
	}
	w.take(waits, time.Second)
	_ = command.Process.Kill()
	_ = command.Wait()
	w.slots[1].id = process.ID{PID: os.Getpid(), StartTime: w.slots[1].id.StartTime - 1} // another process
	if s := w.snapshot(); len(s.Processes) != 0 || len(s.Ended) != 1 || s.Ended[0].Total != 3*time.Second {
		t.Errorf("%+v", s)
	}
	w.take(waits, time.Second)
	if s := w.snapshot(); len(s.Processes) != 1 || s.Processes[0].PID != os.Getpid() || s.Processes[0].Events[0].Total != time.Second {
		t.Errorf("afterwards: %+v", s)
	}
	if w.Reset(pid) {
		t.Error("the ended process is known")
	}
}
