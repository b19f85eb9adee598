package ptrace

import (
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// allowedCPUs is the set of processors that threads of this program may be bound to: all of its control group's, though
// the program itself may have been told to run on some of them only (taskset(1)). What runs elsewhere no clock sees.
func allowedCPUs() (set unix.CPUSet, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var own, all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &own); err != nil {
		return own, systemError(unix.Getpid(), "sched_getaffinity", err)
	}
	for i := range all {
		all[i] = ^all[i]
	}
	if unix.SchedSetaffinity(0, &all) != nil { // the kernel leaves out what there is not
		return own, nil
	}
	err = unix.SchedGetaffinity(0, &set)
	if back := unix.SchedSetaffinity(0, &own); err == nil {
		err = back
	}
	if err != nil {
		return own, systemError(unix.Getpid(), "sched_setaffinity", err)
	}
	return set, nil
}

// online is how many processors the machine has switched on; 0 if it does not say.
func online() int {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return 0
	}
	return countOnline(strings.TrimSpace(string(text)))
}

// countOnline counts what a list such as 0-3,5 has; 0 if it is none.
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
