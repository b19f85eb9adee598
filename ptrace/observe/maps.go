package observe

import (
	"errors"
	"fmt"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// Maps reads the mappings of a process without stopping it. The errors are those of Observe. A 32-bit program is
// ErrNotObserved.
func Maps(pid int) (*snapshot.MapsSnapshot, error) {
	stat, err := process.ReadTarget(pid)
	if err != nil {
		return nil, err
	}
	maps, err := readMaps(pid, false)
	if err != nil {
		return nil, err
	}
	if narrow(maps) {
		return nil, fmt.Errorf("process %d: %w: a 32-bit program", pid, ErrNotObserved)
	}
	return snapshot.NewMapsSnapshot(maps, &stat), nil
}

// readMaps reads the mappings of a process. A main thread that is exiting shows none. In this case and with allThreads,
// readMaps reads them through another thread of the process.
func readMaps(pid int, allThreads bool) ([]process.Mapping, error) {
	tids := []int{pid}
	if allThreads {
		if all, err := process.Threads(pid); err == nil {
			tids = append(tids, all...)
		}
	}
	for _, tid := range tids {
		maps, err := process.TaskMaps(pid, tid)
		switch {
		case err == nil && len(maps) > 0:
			return maps, nil
		case err != nil && !errors.Is(err, process.ErrGone):
			return nil, process.ReadError(pid, tid, err)
		}
	}
	return nil, process.Exited(pid)
}

// narrow reports whether the whole process lies in the first 4 GiB. This is true for 32-bit programs, which have other
// registers. The kernel's own page at the end of the address space is ignored.
func narrow(maps []process.Mapping) bool {
	for i := range maps {
		if maps[i].End > 1<<32 && maps[i].Path != "[vsyscall]" {
			return false
		}
	}
	return true
}
