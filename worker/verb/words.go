package verb

import (
	"errors"
	"fmt"

	"pg_stat_backtrace/worker/authz"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/serve/spool"
)

// errOneProcess means that a request for a verb of one process names none or several. A request without a process would
// be about all processes, for which other SQL functions and privileges exist.
var errOneProcess = &render.Fault{
	SQLState: render.InvalidParameterValue, Message: "this request must name one process",
}

// errNoProcess becomes a warning and the result NULL, so that a query over many processes continues when a process has
// ended.
var errNoProcess = errors.New("not a PostgreSQL server process")

// errNoServer means that the postmaster has ended while the caller's backend still runs, or that the server is
// starting.
var errNoServer = &render.Fault{
	SQLState: render.NotInPrerequisiteState, Message: "the server is shutting down or starting",
}

func postmaster(pid int) error {
	return &render.Fault{
		SQLState: render.InsufficientPrivilege,
		Message:  fmt.Sprintf("cannot capture the backtrace of the postmaster, process %d", pid),
		Detail:   "No connection is accepted, and no process started or restarted, while the postmaster is stopped.",
		Hint: "On the server's host, \"pg_stat_backtrace capture --nonstop\" captures the postmaster " +
			"without stopping it.",
	}
}

// failure returns the answer to the SQL caller for an error about the process pid; 0: no single process.
func failure(pid int, err error) spool.Answer {
	if errors.Is(err, errNoProcess) {
		return spool.Answer{
			Level: "WARNING", SQLState: "01000",
			Message: fmt.Sprintf("PID %d is not a PostgreSQL server process", pid),
		}
	}
	var failed *host.Panic
	if errors.As(err, &failed) {
		return spool.Answer{
			Level: "ERROR", SQLState: render.InternalError, Message: "internal error of the pg_stat_backtrace worker",
			Hint: "See the log of the worker.",
		}
	}
	var denied *authz.Denied
	if errors.As(err, &denied) {
		return spool.Answer{
			Level: "ERROR", SQLState: denied.SQLState,
			Message: denied.Message, Detail: denied.Detail, Hint: denied.Hint,
		}
	}
	var exceeded *limits.Exceeded
	if errors.As(err, &exceeded) {
		return spool.Answer{
			Level: "ERROR", SQLState: limits.SQLState,
			Message: exceeded.Message, Detail: exceeded.Detail, Hint: exceeded.Hint,
		}
	}
	f := render.FaultOf(pid, err)
	if f.SQLState == render.InternalError {
		// The text of the error is in the worker's log only. It may contain paths, which not every caller may see.
		f = &render.Fault{
			SQLState: render.InternalError,
			Message:  fmt.Sprintf("could not capture process with PID %d", pid),
			Hint:     "The log of the pg_stat_backtrace worker says more.",
		}
	}
	return spool.Answer{Level: "ERROR", SQLState: f.SQLState, Message: f.Message, Detail: f.Detail, Hint: f.Hint}
}
