package cluster

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"pg_stat_backtrace/ptrace/process"
)

// maxTitle bounds a process title, in bytes.
const maxTitle = 4096

// Member is a process of the server: a child of the postmaster.
type Member struct {
	PID       int    // in the server's PID namespace
	Local     int    // in this process's PID namespace
	StartTime uint64 // clock ticks since boot, proc(5)
	// Title is the title that ps(1) shows, such as "postgres: main: checkpointer". The process writes it, and it may
	// contain the name of a user or database. Use it only for display.
	Title string
	// Denied is a process.ErrNotPermitted (see Contains) if this process must not examine the member; nil: it may.
	Denied error
}

// Contains returns the identity of a process of the server, by its pid in the server's PID namespace. The process must be a
// child of the postmaster, with the same executable and the same rights as the postmaster. Call Contains before the
// permission check and give the identity to the capture. Then check and capture apply to this process and this program, and
// never to a later process with the same pid or to another program that the process executes. The caller must release the
// identity.
//
// The error is ErrPostmaster, process.ErrNotPermitted for a process with the postmaster's executable but other rights than
// the postmaster's, or ErrNotMember for all other numbers. If this process lacks resources (process.LacksResources), it is the
// error of the read.
func (c Cluster) Contains(pid int) (process.Target, error) {
	local := c.Local(pid)
	if local == c.PostmasterPID {
		return process.Target{}, fmt.Errorf("process %d: %w", pid, ErrPostmaster)
	}
	if local == 0 && pid > 0 {
		if _, err := c.Children(); process.LacksResources(err) { // Local has not found the process for this reason
			return process.Target{}, err
		}
	}
	held, err := process.Hold(local)
	if errors.Is(err, process.ErrExited) {
		return process.Target{}, fmt.Errorf("process %d: %w: %w", pid, ErrNotMember, err)
	}
	rights, err := c.Rights()
	if err != nil {
		held.Release()
		return process.Target{}, notMember(pid, err)
	}
	// Without a handle (held is nil), only the start time identifies the process.
	proof := process.Prove(local)
	stat, err := c.child(local, proof, &rights)
	if err == nil && held != nil && !held.Lives() {
		err = errExited
	}
	if err != nil {
		held.Release()
		return process.Target{}, notMember(pid, err)
	}
	return process.Target{
		PID: local, StartTime: stat.StartTime, PPID: c.PostmasterPID, UID: c.UID, Held: held, Rights: &rights, Proof: proof,
	}, nil
}

// notMember converts err to the error of Contains.
func notMember(pid int, err error) error {
	if errors.Is(err, process.ErrNotPermitted) {
		return err
	}
	if process.LacksResources(err) {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	return fmt.Errorf("process %d: %w: %w", pid, ErrNotMember, err)
}

// Rights returns the rights of the postmaster, which every process of the server has too. The worker may have
// CAP_SYS_PTRACE, which the server's user lacks. With this capability the worker must examine no process that the kernel
// forbids this user to trace. Such a process can be a child of the postmaster: the user can start a program of the name
// postgres that executes a setgid program, and the server itself can execute one.
//
// The error is process.ErrNotPermitted if the postmaster itself has rights beyond those of its user and group, or
// process.ErrExited if the server has ended.
func (c Cluster) Rights() (process.Rights, error) {
	var rights process.Rights
	var err error
	if p := process.Prove(c.PostmasterPID); p != nil {
		rights, err = p.Rights()
	} else {
		rights, err = process.ReadRights(c.PostmasterPID)
	}
	if err == nil {
		err = rights.Plain(c.PostmasterPID, c.UID, c.GID)
	}
	if err == nil && !c.Alive() {
		err = process.Exited(c.PostmasterPID)
	}
	return rights, err
}

// Postmaster returns the identity of the postmaster, for reads of its memory. Capture must not stop it. The errors are
// those of Rights.
func (c Cluster) Postmaster() (process.Target, error) {
	rights, err := c.Rights()
	return process.Target{PID: c.PostmasterPID, StartTime: c.PostmasterStart, UID: c.UID, Rights: &rights}, err
}

// Members lists the server's processes, without the postmaster, in ascending order of process id. Processes may start and end
// meanwhile. A process with the postmaster's executable but other rights is listed too: see Member.Denied. The errors are
// ErrNotRunning, those of Rights, and those of a read of /proc.
func (c Cluster) Members() ([]Member, error) {
	if !c.Alive() {
		return nil, fmt.Errorf("%s: %w", c.DataDir, ErrNotRunning)
	}
	rights, err := c.Rights()
	if err != nil {
		return nil, err
	}
	pids, err := c.Children()
	if err != nil {
		return nil, err
	}
	members := make([]Member, 0, len(pids))
	for _, pid := range pids {
		local := c.Local(pid)
		stat, err := c.child(local, nil, &rights)
		if process.LacksResources(err) {
			return nil, fmt.Errorf("process %d: %w", local, err)
		}
		if err != nil && !errors.Is(err, process.ErrNotPermitted) {
			continue // the process has ended, or is a helper program
		}
		members = append(members, Member{PID: pid, Local: local, StartTime: stat.StartTime, Title: Title(local), Denied: err})
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

// child reads a process and verifies that the postmaster forked it. The postmaster can have other children too: in a
// container whose process 1 is the postmaster, it inherits every orphan. The result is also valid if the error is
// process.ErrNotPermitted. proof, if not nil, has the data that were already read of the process.
func (c Cluster) child(pid int, proof *process.Proof, rights *process.Rights) (process.Stat, error) {
	if pid <= 0 {
		return process.Stat{}, process.ErrGone
	}
	var stat process.Stat
	var status process.Status
	var err error
	if proof != nil {
		stat, status = proof.Stat, proof.Status
	} else if stat, err = process.ReadStat(pid); err == nil {
		status, err = process.ReadStatus(pid)
	}
	switch {
	case err != nil:
		return process.Stat{}, err
	case status.TGID != pid:
		return process.Stat{}, errThread
	case stat.PPID != c.PostmasterPID || !c.Alive():
		return process.Stat{}, errOrphan
	case status.UID[1] != c.UID:
		return process.Stat{}, errUser
	case process.HasEnded(&stat):
		return process.Stat{}, errExited
	case !sameExecutable(pid, proof, c.PostmasterPID):
		return process.Stat{}, errExecutable
	}
	if proof != nil {
		return stat, rights.VerifyProof(proof)
	}
	return stat, rights.VerifyStatus(pid, &status)
}

// sameExecutable reports whether two processes run the same file, by device and inode. An upgrade of the package
// makes no difference. If a file cannot be read, sameExecutable returns true: the capture will report the cause.
func sameExecutable(a int, ofA *process.Proof, b int) bool {
	infoA, errA := program(a, ofA)
	infoB, errB := program(b, process.Prove(b))
	return errA != nil || errB != nil || os.SameFile(infoA, infoB)
}

func program(pid int, proof *process.Proof) (os.FileInfo, error) {
	if proof != nil {
		return proof.Program()
	}
	return os.Stat(procPath(pid, "exe"))
}

// Title returns the process title as ps(1) shows it, see Member.Title. It is empty if the process has exited, or if the
// kernel does not return the title in time.
func Title(pid int) (title string) {
	var read string
	if !process.WithTimeout(pid, func() { read = ReadTitle(pid) }, func() {}) {
		return ""
	}
	return read
}

// ReadTitle is Title without a timeout, for functions that run in process.WithTimeout or process.Each. To read the
// title, the kernel takes the lock of the process's address space, so the read may never return.
func ReadTitle(pid int) string {
	data, err := readProc(pid, "cmdline", maxTitle)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(strings.ToValidUTF8(strings.ReplaceAll(string(data), "\x00", " "), "?"))
}
