package pgcluster

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/procfs"
)

// maxTitle bounds a process title, in bytes.
const maxTitle = 4096

// Member is a process of the server: a child of the postmaster.
type Member struct {
	PID       int    // in the server's view
	Local     int    // in this process's view
	StartTime uint64 // clock ticks since boot, proc(5)
	// Title is the title that ps(1) shows, such as "postgres: main: checkpointer". The process writes it, and it may
	// contain the name of a user or database. Use it only for display.
	Title string
}

// Contains returns the identity of a process of the server, by its pid in the server's view. The process must be a
// child of the postmaster, with the same executable and user. Call Contains before the permission check and give the
// identity to the capture. Then neither applies to another process that gets the pid later. The caller must release
// the identity.
//
// The error is ErrPostmaster or, for all other numbers, ErrNotMember.
func (c Cluster) Contains(pid int) (process.Target, error) {
	local := c.Local(pid)
	if local == c.PostmasterPID {
		return process.Target{}, fmt.Errorf("process %d: %w", pid, ErrPostmaster)
	}
	held, err := process.Hold(local)
	if errors.Is(err, process.ErrExited) {
		return process.Target{}, fmt.Errorf("process %d: %w: %w", pid, ErrNotMember, err)
	}
	// Without a descriptor the start time has to do.
	stat, err := c.child(local)
	if err == nil && held != nil && !held.Lives() {
		err = errExited
	}
	if err != nil {
		held.Release()
		return process.Target{}, fmt.Errorf("process %d: %w: %w", pid, ErrNotMember, err)
	}
	return process.Target{
		PID: local, StartTime: stat.StartTime, PPID: c.PostmasterPID, UID: c.UID, Held: held,
	}, nil
}

// Members lists the server's processes, without the postmaster, in ascending order of process id. Processes may start
// and end meanwhile.
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
			continue // it has ended, or is a helper program
		}
		members = append(members, Member{PID: pid, Local: local, StartTime: stat.StartTime, Title: Title(local)})
	}
	return members, nil
}

var (
	errThread     = errors.New("the number is the id of a thread")
	errOrphan     = errors.New("it is not a child of the postmaster")
	errUser       = errors.New("it runs as another user")
	errExecutable = errors.New("it runs another program")
	errExited     = errors.New("it has exited")
)

// child reads a process and verifies that the postmaster forked it. Being its child is not enough: in a container
// whose process 1 is the postmaster, the postmaster inherits every orphan.
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

// sameExecutable reports whether two processes run the same file, by device and inode. An upgrade of the package
// makes no difference. If a file cannot be read it returns true, and the capture will report the cause.
func sameExecutable(a, b int) bool {
	infoA, errA := os.Stat(procPath(a, "exe"))
	infoB, errB := os.Stat(procPath(b, "exe"))
	return errA != nil || errB != nil || os.SameFile(infoA, infoB)
}

// Title returns the process title as ps(1) shows it, see Member.Title. It is empty if the process has exited.
func Title(pid int) string {
	data, err := readProc(pid, "cmdline", maxTitle)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(strings.ToValidUTF8(strings.ReplaceAll(string(data), "\x00", " "), "?"))
}
