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

// RanBetween is like Ran, and also returns two times between which the kernel has answered. On a busy host they can be far apart, so
// RanBetween asks again then, three times at most. The share of a processor in a span is never too large if the span is from the
// first answer's time from to the second answer's time to.
func RanBetween(pid int) (ran time.Duration, from, to time.Time, ok bool) {
	const tries, near = 3, 2 * time.Millisecond
	for range tries {
		from = time.Now()
		ran, ok = Ran(pid)
		if to = time.Now(); !ok || to.Sub(from) < near {
			break
		}
	}
	return ran, from, to, ok
}
