package waitevent

import (
	"errors"
	"fmt"
	"slices"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/layout"
	"pg_stat_backtrace/worker/pg/levels"
)

// layoutOf returns the offsets of a major version: PGPROC and PROC_HDR (proc.h) and PgBackendStatus (backend_status.h).
func layoutOf(major int) (waits.Layout, bool) {
	l, ok := layout.Of(major)
	if !ok {
		return waits.Layout{}, false
	}
	return waits.Layout{
		ProcSize: l.PGPROC.Size.Int(), WaitEvent: l.PGPROC.WaitEventInfo.Int(), PID: l.PGPROC.PID.Int(),
		ProcCount: l.ProcHdr.AllProcCount.Int(), QueryID: l.PgBackendStatus.StQueryId.Int(),
		State: l.PgBackendStatus.StState.Int(), QueryStart: l.PgBackendStatus.StActivityStartTimestamp.Int(),
		StateStart: l.PgBackendStatus.StStateStartTimestamp.Int(),
		Idle:       slices.Index(l.BackendStates, "idle"), Running: slices.Index(l.BackendStates, "active"),
		Uring: major >= firstUring,
	}, true
}

// firstUring is the first major version that can read and write with io_uring.
const firstUring = 18

// Names of exported variables of the server. They are known on stripped servers too.
const (
	waitVariable   = "my_wait_event_info"
	procsVariable  = "ProcGlobal"
	statusVariable = "MyBEEntry"
)

// A Server is a running server whose wait events can be timed.
type Server struct {
	Cluster cluster.Cluster
	Names   *levels.WaitNames
	Program cluster.Program
	Target  waits.Server
}

// Locate finds the variables of a running server. The error wraps waits.ErrUnsupported if its version is not known.
func Locate(c cluster.Cluster) (*Server, error) {
	offsets, ok := layoutOf(c.Version)
	if !ok {
		return nil, fmt.Errorf("%w: PostgreSQL %d is not known to this release", waits.ErrUnsupported, c.Version)
	}
	names, err := levels.NewWaitNames(c.Version)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", waits.ErrUnsupported, err)
	}
	rights, err := c.Rights()
	if err != nil {
		return nil, err
	}
	program, err := cluster.ProgramOf(c.PostmasterPID)
	if errors.Is(err, cluster.ErrNoProgram) {
		return nil, fmt.Errorf("%w: %w", waits.ErrUnsupported, err)
	}
	if err != nil {
		return nil, err
	}
	variables, err := program.Variables(waitVariable, procsVariable, statusVariable)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{waitVariable, procsVariable, statusVariable} {
		if variables[name] == 0 {
			return nil, fmt.Errorf("%w: the server's program %s does not export %s", waits.ErrUnsupported, program.Path, name)
		}
	}
	s := &Server{Cluster: c, Names: names, Program: program, Target: waits.Server{
		Postmaster: c.PostmasterPID, Rights: &rights, Layout: offsets, WaitPointer: variables[waitVariable],
		ProcGlobal: variables[procsVariable], Status: variables[statusVariable],
		Local: c.Local, ServerPID: serverPID(c), OpenProgram: program.Open,
	}}
	s.Target.ExecutorStart, _ = program.Offset("standard_ExecutorStart")
	s.Target.ExecutorEnd, _ = program.Offset("standard_ExecutorEnd")
	return s, nil
}

// serverPID returns a function that translates a process id of this program to the id that the server sees; nil: both are equal.
// The function returns 0 for a process that has ended.
func serverPID(c cluster.Cluster) func(int) int {
	if !c.Outside() {
		return nil
	}
	return func(pid int) int {
		status, err := process.ReadStatus(pid)
		if err != nil || len(status.NSPID) == 0 {
			return 0
		}
		return status.NSPID[len(status.NSPID)-1]
	}
}
