package console

import (
	"errors"
	"fmt"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/serve/node"
)

// NoProcess says that a process does not exist.
func NoProcess(pid int) string { return fmt.Sprintf("there is no process %d", pid) }

// Stranger says that a process belongs to no server.
func Stranger(pid int) string {
	return fmt.Sprintf("process %s is no process of a PostgreSQL server", named(pid))
}

// named returns a process id, with the name of the process's program if it is known.
func named(pid int) string {
	stat, err := process.ReadStat(pid)
	if err != nil || stat.Comm == "" {
		return fmt.Sprint(pid)
	}
	return fmt.Sprintf("%d (%s)", pid, render.VisibleLine(stat.Comm))
}

// ExplainTarget is Explain for a process that may not have existed when the command began.
func ExplainTarget(target process.Target, err error) string {
	if target.StartTime == 0 && IsGone(err) {
		return NoProcess(target.PID)
	}
	return Explain(target.PID, err)
}

// NotOfServer returns why a process whose memory may not be read is no process of a server, as far as its name shows. It
// returns "" for another error, and if the process may belong to a server.
func NotOfServer(pid int, err error) string {
	if !isDenied(err) || node.CalledServer(pid) {
		return ""
	}
	return Stranger(pid) + ", judging by its name; its memory may not be read"
}

// IsGone reports whether an error means that a process does not exist, or has ended.
func IsGone(err error) bool {
	var main *process.MainThreadError
	return !errors.As(err, &main) && (errors.Is(err, process.ErrExited) || errors.Is(err, process.ErrGone))
}
