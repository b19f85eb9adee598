package process

import (
	"errors"
)

// ID identifies a process until the machine is rebooted: the kernel reuses process ids, but no two processes have the
// same id and start time.
type ID struct {
	PID       int
	StartTime uint64 // as Stat.StartTime; 0: any process with this PID
}

// IDOf returns the identity of the process that has the id now. The error is ErrExited if there is none, or if it has ended
// and its parent has not waited for it yet (a zombie).
func IDOf(pid int) (ID, error) {
	stat, err := ReadStat(pid)
	switch {
	case errors.Is(err, ErrGone):
		return ID{}, Exited(pid)
	case err != nil:
		return ID{}, err
	case HasEnded(&stat):
		return ID{}, Exited(pid)
	}
	return ID{PID: pid, StartTime: stat.StartTime}, nil
}

// Ended reports whether the process has ended: there is no process with its id, another process has its id, or all of
// its threads have exited and its parent has not waited for it yet. It is false if the process cannot be read for another
// reason, such as a lack of file descriptors.
func (id ID) Ended() bool {
	stat, err := ReadStat(id.PID)
	if err != nil {
		return errors.Is(err, ErrGone)
	}
	return id.StartTime != 0 && stat.StartTime != id.StartTime || HasEnded(&stat)
}

// HasEnded reports whether all threads of a process in this state have exited. The process lives on while its main
// thread has exited and others run.
func HasEnded(stat *Stat) bool { return IsDead(stat.State) && stat.Threads <= 1 }
