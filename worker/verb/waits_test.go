package verb

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/authz"
	"pg_stat_backtrace/worker/measure/waitevent"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/serve/spool"
)

// lookingUp allows each process to each caller. It calls the function before it answers.
type lookingUp struct {
	authz.Looker

	before func()
}

func (l lookingUp) LookAll(_ context.Context, pids []int, caller uint32) (map[int]authz.Facts, error) {
	l.before()
	facts := make(map[int]authz.Facts)
	for _, pid := range pids {
		facts[pid] = authz.Facts{CallerExists: true, Found: true, Role: caller, RoleExists: true, HasPrivileges: true}
	}
	return facts, nil
}

// TestOwnWaitsOfSameProcess: if a process ends while the server is asked for the caller's rights, these may be the rights for
// another process with the same id. The report must not have such a process.
func TestOwnWaitsOfSameProcess(t *testing.T) {
	s := idle()
	command := exec.Command("sleep", "3600")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	end := func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	}
	t.Cleanup(end)
	s.cfg.Server = serving(cluster.Cluster{PostmasterPID: os.Getpid(), PostmasterStart: startOf(t, os.Getpid())})
	ended := command.Process.Pid
	before, err := s.identities()
	if err != nil || before[ended] != (process.ID{PID: ended, StartTime: startOf(t, ended)}) {
		t.Fatalf("%v, %v", before, err)
	}
	const other = 1 << 22 // no process has this id
	same, replaced := os.Getpid(), os.Getppid()
	before[same] = process.ID{PID: same, StartTime: startOf(t, same)}
	before[replaced] = process.ID{PID: replaced, StartTime: startOf(t, replaced) + 1}
	report := waitevent.Report{Processes: []waitevent.ProcessRows{{PID: ended}, {PID: other}, {PID: same}, {PID: replaced}}}
	s.cfg.Looker = lookingUp{before: end}
	if err := s.keepOwn(t.Context(), spool.Request{Caller: 16384}, &report, before); err != nil {
		t.Fatal(err)
	}
	if len(report.Processes) != 1 || report.Processes[0].PID != same {
		t.Errorf("%+v", report.Processes)
	}
}
