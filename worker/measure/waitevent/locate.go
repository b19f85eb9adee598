package waitevent

import (
	"errors"
	"fmt"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/ptrace/process/procfs"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/levels"
	"pg_stat_backtrace/worker/pg/pgprogram"
)

// layouts are the offsets of each major version on 64-bit machines: PGPROC (proc.h), PROC_HDR (proc.h) and
// PgBackendStatus (backend_status.h).
//
//nolint:gochecknoglobals // a table
var layouts = map[int]waits.Layout{
	14: earlierLayout, 15: earlierLayout, 16: earlierLayout,
	17: {
		ProcSize: 888, WaitEvent: 712, PID: 60, ProcCount: 32,
		QueryID: 424, State: 232, QueryStart: 32, StateStart: 40, Idle: 1, Running: 2,
	},
	18: {
		ProcSize: 832, WaitEvent: 712, PID: 60, ProcCount: 32,
		QueryID: 424, State: 232, QueryStart: 32, StateStart: 40, Idle: 2, Running: 3, Uring: true,
	},
	19: {
		ProcSize: 896, WaitEvent: 856, PID: 24, ProcCount: 32,
		QueryID: 424, State: 232, QueryStart: 32, StateStart: 40, Idle: 2, Running: 3, Uring: true,
	},
}

//nolint:gochecknoglobals // a table
var earlierLayout = waits.Layout{
	ProcSize: 880, WaitEvent: 712, PID: 64, ProcCount: 32,
	QueryID: 424, State: 232, QueryStart: 32, StateStart: 40, Idle: 1, Running: 2,
}

// Variables of the server, which it exports, stripped or not.
const (
	waitVariable   = "my_wait_event_info"
	procsVariable  = "ProcGlobal"
	statusVariable = "MyBEEntry"
)

// A Server is a running server whose wait events can be timed.
type Server struct {
	Cluster cluster.Cluster
	Names   *levels.WaitNames
	Program pgprogram.Program
	Target  waits.Server
}

// Locate finds the variables of a running server. The error wraps waits.ErrUnsupported if its version is not known.
func Locate(c cluster.Cluster) (*Server, error) {
	layout, ok := layouts[c.Version]
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
	program, err := pgprogram.Of(c.PostmasterPID)
	if errors.Is(err, pgprogram.ErrNoProgram) {
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
		Postmaster: c.PostmasterPID, Rights: &rights, Layout: layout, WaitPointer: variables[waitVariable],
		ProcGlobal: variables[procsVariable], Status: variables[statusVariable],
		Local: c.Local, ServerPID: serverPID(c), OpenProgram: program.Open,
	}}
	s.Target.ExecutorStart, _ = program.Offset("standard_ExecutorStart")
	s.Target.ExecutorEnd, _ = program.Offset("standard_ExecutorEnd")
	return s, nil
}

// serverPID returns the function that translates a process id into the server's.
func serverPID(c cluster.Cluster) func(int) int {
	if !c.Outside() {
		return nil
	}
	return func(pid int) int {
		status, err := procfs.ReadStatus(pid)
		if err != nil || len(status.NSPID) == 0 {
			return 0
		}
		return status.NSPID[len(status.NSPID)-1]
	}
}
