package console

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/serve/node"
)

// NoProcess returns the message that a process does not exist.
func NoProcess(pid int) string { return fmt.Sprintf("there is no process %d", pid) }

// Stranger returns the message that a process does not belong to a PostgreSQL server.
func Stranger(pid int) string {
	return fmt.Sprintf("process %s is no process of a PostgreSQL server", named(pid))
}

// named returns a process id, with the name of the process's program if it is known.
func named(pid int) string {
	stat, err := process.ReadStat(pid)
	if err != nil || stat.Comm == "" {
		return strconv.Itoa(pid)
	}
	return fmt.Sprintf("%d (%s)", pid, render.VisibleLine(stat.Comm))
}

// ExplainTarget is like Explain, but if the process did not exist at the start of the command, it returns NoProcess.
func ExplainTarget(target process.Target, err error) string {
	if target.StartTime == 0 && IsGone(err) {
		return NoProcess(target.PID)
	}
	return Explain(target.PID, err)
}

// NotOfServer returns a message for a process whose memory this user may not read and that does not have the name of a server
// process. It returns "" if err has another reason, or if the process may belong to a server.
func NotOfServer(pid int, err error) string {
	if !IsDenied(err) || node.CalledServer(pid) {
		return ""
	}
	return Stranger(pid) + ", judging by its name; its memory may not be read"
}

// ServerOf returns the server to which all the processes belong. It returns an error if one of them is not a child of the server's
// postmaster, or may not be read.
func ServerOf(pids []int) (cluster.Cluster, error) {
	for _, pid := range pids {
		switch stat, err := process.ReadStat(pid); {
		case errors.Is(err, process.ErrGone):
			return cluster.Cluster{}, errors.New(NoProcess(pid))
		case err == nil && stat.Flags&process.KernelThread != 0:
			return cluster.Cluster{}, errors.New(Stranger(pid))
		}
	}
	c, err := cluster.ByProcess(pids[0])
	switch why := NotOfServer(pids[0], err); {
	case err == nil:
	case errors.Is(err, cluster.ErrNotDataDir):
		return c, notOfServer(pids[0])
	case IsGone(err):
		return c, errors.New(Explain(pids[0], err))
	case why != "":
		return c, errors.New(why)
	default:
		return c, err
	}
	members, err := c.Members()
	if err != nil {
		return c, err
	}
	for _, pid := range pids {
		i := slices.IndexFunc(members, func(m cluster.Member) bool { return m.Local == pid })
		switch {
		case i >= 0 && members[i].Denied != nil:
			return c, members[i].Denied
		case i < 0 && pid == c.PostmasterPID:
			return c, fmt.Errorf("process %d is the postmaster of %s, which has no session and no wait events", pid, c)
		case i < 0:
			return c, fmt.Errorf("process %s is no process of %s", named(pid), c)
		}
	}
	return c, nil
}

// notOfServer returns the error for a process whose server is not known. It uses the process's mapped files to find out whether
// the process runs the program of a server.
func notOfServer(pid int) error {
	program, err := cluster.ProgramOf(pid)
	switch {
	case err == nil:
		return fmt.Errorf("process %d runs the server's program %s, but neither it nor its parent works in a data directory",
			pid, program.Path)
	case errors.Is(err, cluster.ErrNoProgram):
		return errors.New(Stranger(pid))
	}
	return err
}

// IsGone reports whether an error means that a process does not exist, or has ended. It is false if only the main thread has
// ended.
func IsGone(err error) bool {
	var main *process.MainThreadError
	return !errors.As(err, &main) && (errors.Is(err, process.ErrExited) || errors.Is(err, process.ErrGone))
}
