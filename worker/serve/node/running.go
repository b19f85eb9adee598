package node

import (
	"cmp"
	"maps"
	"slices"
	"sort"

	"pg_stat_backtrace/ptrace/process"
)

// Running returns the processes of this host that may be postmasters, sorted by data directory. The caller must verify
// them. denied is the number of servers that this user may not examine.
func Running() (candidates []Process, denied int, err error) {
	s := newScanner(Config{Proc: "/proc"})
	if err := s.lookAtAll(); err != nil {
		return nil, 0, err
	}
	candidates = slices.SortedFunc(maps.Values(s.found), func(a, b Process) int {
		return cmp.Or(cmp.Compare(a.DataDir, b.DataDir), a.PID-b.PID)
	})
	return candidates, len(s.denied), nil
}

// Denied returns the servers that this user may not examine, sorted by process id. Their DataDir is empty.
func Denied() (list []Process, err error) {
	s := newScanner(Config{Proc: "/proc"})
	if err := s.lookAtAll(); err != nil {
		return nil, err
	}
	for pid := range s.denied {
		stat, err1 := process.ReadStat(pid)
		status, err2 := process.ReadStatus(pid)
		if err1 == nil && err2 == nil {
			list = append(list, Process{PID: pid, Start: stat.StartTime, UID: status.UID[1]})
		}
	}
	sort.Slice(list, func(i, j int) bool {
		a, b := list[i], list[j]
		return a.PID-b.PID < 0
	})
	return list, nil
}

// CalledServer reports whether a process has one of the usual names of the server's program. It needs no right to examine
// the process.
func CalledServer(pid int) bool { return isCalledServer("/proc", pid) }
