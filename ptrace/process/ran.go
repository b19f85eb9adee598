package process

import (
	"strconv"
	"strings"
	"time"
)

// Ran returns for how long the main thread of a process was on processors since its start (the first number of
// /proc/PID/schedstat). ok is false if it is not known: the process has ended, or the kernel has no such file. The kernel updates the
// number of a running thread at each of its clock ticks, 1 to 10 ms apart.
func Ran(pid int) (ran time.Duration, ok bool) {
	text, err := readFileOnce(procPath(pid, "schedstat"))
	if err != nil {
		return 0, false
	}
	first, _, _ := strings.Cut(text, " ")
	n, err := strconv.ParseInt(first, 10, 64)
	return time.Duration(n), err == nil
}
