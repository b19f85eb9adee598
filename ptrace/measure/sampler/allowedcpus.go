package sampler

import (
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
)

// allowedCPUs returns the processors to which threads of this program may be bound. These are all processors of its
// control group, even if the program itself was started on some of them only (taskset(1)). The sampler cannot see
// threads on other processors.
func allowedCPUs() (set unix.CPUSet, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var own, all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &own); err != nil {
		return own, process.Failed(unix.Getpid(), "sched_getaffinity", err)
	}
	for i := range all {
		all[i] = ^all[i]
	}
	if unix.SchedSetaffinity(0, &all) != nil { // the kernel ignores nonexistent processors
		return own, nil
	}
	err = unix.SchedGetaffinity(0, &set)
	if back := unix.SchedSetaffinity(0, &own); err == nil {
		err = back
	}
	if err != nil {
		return own, process.Failed(unix.Getpid(), "sched_setaffinity", err)
	}
	return set, nil
}

// online returns the number of the machine's online processors; 0 if unknown.
func online() int {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return 0
	}
	return countOnline(strings.TrimSpace(string(text)))
}

// countOnline counts the processors in a list such as 0-3,5; 0 if the list is invalid.
func countOnline(list string) (n int) {
	for part := range strings.SplitSeq(list, ",") {
		first, last, several := strings.Cut(part, "-")
		if !several {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || to < from {
			return 0
		}
		n += to - from + 1
	}
	return n
}
