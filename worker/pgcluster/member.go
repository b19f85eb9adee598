package pgcluster

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"pg_stat_backtrace/ptrace"
	"pg_stat_backtrace/ptrace/procfs"
)

// maxTitle bounds a process title, bytes.
const maxTitle = 4096

// Member is a process of the server: a child of the postmaster.
type Member struct {
	PID       int    // as the server knows it
	Local     int    // as this process knows it
	StartTime uint64 // clock ticks since boot, proc(5)
	// Title is what ps(1) shows, like "postgres: main: checkpointer". It is written by the process itself and may hold
	// a user's or a database's name: show it, decide nothing by it.
	Title string
}

// Contains returns the identity of the process that the server knows as pid if it is one of the server's: a child of
// the postmaster that runs the same executable as the same user. A capture is given this identity, so that neither
// permission nor capture ever applies to another process that inherits the pid; to that end, ask Contains before asking
// for permission. What the identity holds must be released.
//
// The errors are ErrPostmaster, and ErrNotMember for everything else: no such process, a thread, somebody else's child,
// a number that can be no process id.
func (c Cluster) Contains(pid int) (ptrace.Target, error) {
	local := c.Local(pid)
	if local == c.PostmasterPID {
		return ptrace.Target{}, fmt.Errorf("process %d: %w", pid, ErrPostmaster)
	}
	held, err := ptrace.Hold(local)
	if errors.Is(err, ptrace.ErrExited) {
		return ptrace.Target{}, fmt.Errorf("process %d: %w: %w", pid, ErrNotMember, err)
	}
	// Without a descriptor the start time has to do.
	stat, err := c.child(local)
	if err == nil && held != nil && !held.Lives() {
		err = errExited
	}
	if err != nil {
		held.Release()
		return ptrace.Target{}, fmt.Errorf("process %d: %w: %w", pid, ErrNotMember, err)
	}
	return ptrace.Target{
		PID: local, StartTime: stat.StartTime, PPID: c.PostmasterPID, UID: c.UID, Held: held,
	}, nil
}

// Members lists the server's processes, the postmaster not among them, in ascending order of process id. Processes
// come and go meanwhile.
func (c Cluster) Members() ([]Member, error) {
	if !c.Alive() {
		return nil, fmt.Errorf("%s: %w", c.DataDir, ErrNotRunning)
	}
	pids, err := c.Children()
	if err != nil {
		return nil, err
	}
	members := make([]Member, 0, len(pids))
	for _, pid := range pids {
		local := c.Local(pid)
		stat, err := c.child(local)
		if err != nil {
			continue // gone meanwhile, or a helper program
		}
		members = append(members, Member{PID: pid, Local: local, StartTime: stat.StartTime, Title: Title(local)})
	}
	return members, nil
}

var (
	errThread     = errors.New("the number is a thread's")
	errOrphan     = errors.New("it is not a child of the postmaster")
	errUser       = errors.New("it runs as another user")
	errExecutable = errors.New("it runs another program")
	errExited     = errors.New("it has exited")
)

// child reads the process and checks that the postmaster forked it. Being its child alone is not enough: where the
// postmaster is a container's process 1, it inherits every orphan of the container.
func (c Cluster) child(pid int) (procfs.Stat, error) {
	if pid <= 0 {
		return procfs.Stat{}, procfs.ErrGone
	}
	stat, err := procfs.ReadStat(pid)
	if err != nil {
		return procfs.Stat{}, err
	}
	status, err := procfs.ReadStatus(pid)
	switch {
	case err != nil:
		return procfs.Stat{}, err
	case status.TGID != pid:
		return procfs.Stat{}, errThread
	case stat.PPID != c.PostmasterPID || !c.Alive():
		return procfs.Stat{}, errOrphan
	case status.UID[1] != c.UID:
		return procfs.Stat{}, errUser
	case exited(stat.State):
		return procfs.Stat{}, errExited
	case !sameExecutable(pid, c.PostmasterPID):
		return procfs.Stat{}, errExecutable
	}
	return stat, nil
}

// sameExecutable compares what two processes run. It goes by device and inode, so an upgrade of the package in between
// makes no difference. What cannot be read does not count against the process: the capture itself will tell why.
func sameExecutable(a, b int) bool {
	infoA, errA := os.Stat(procPath(a, "exe"))
	infoB, errB := os.Stat(procPath(b, "exe"))
	return errA != nil || errB != nil || os.SameFile(infoA, infoB)
}

// Title returns what ps(1) shows of the process, see Member.Title; empty when it has exited.
func Title(pid int) string {
	data, err := os.ReadFile(procPath(pid, "cmdline"))
	if err != nil {
		return ""
	}
	data = data[:min(len(data), maxTitle)]
	return strings.TrimSpace(strings.ToValidUTF8(strings.ReplaceAll(string(data), "\x00", " "), "?"))
}
