package bpf

import (
	"fmt"

	"pg_stat_backtrace/ptrace/process"
)

// ReturnProbes returns an error if probes of the returns of functions could crash one of these processes. Since Linux
// 6.11, on x86_64, a process makes the system call uretprobe at a probed return. The seccomp filters of container runtimes
// do not list this call. They refuse it, and the process crashes. Linux 6.14, 6.13.3 and 6.12.14 exempt the call from
// filters.
func ReturnProbes(pids ...int) error {
	if !returnsAreCalls || !filtersReturns(Release()) {
		return nil
	}
	for _, pid := range pids {
		const filtered = 2
		if s, err := process.ReadStatus(pid); err == nil && s.Seccomp == filtered {
			return fmt.Errorf("process %d has a seccomp filter, and Linux %s would crash it at a probed return: "+
				"a later kernel is needed (6.12.14, 6.13.3, 6.14)", pid, Release())
		}
	}
	return nil
}

// filtersReturns reports whether a release of the kernel passes the system call uretprobe to seccomp filters.
func filtersReturns(release string) bool {
	var major, minor, patch int
	n, _ := fmt.Sscanf(release, "%d.%d.%d", &major, &minor, &patch)
	if n < 2 || major != 6 {
		return false
	}
	switch minor {
	case 11:
		return true
	case 12:
		return patch < 14
	case 13:
		return patch < 3
	}
	return false
}
