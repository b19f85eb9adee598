package host

import (
	"os"
	"strconv"
	"time"
)

// slack is how long the kernel may delay the program's timers to handle several at once (PR_SET_TIMERSLACK in
// prctl(2)). The default is 50 µs. A thread of the Go runtime checks a busy program every 20 µs plus the slack, which
// takes a sixth of the processor time of a capture on a busy machine. The worker needs no higher precision than this
// slack.
const slack = time.Millisecond

// loosen sets the slack of all existing threads. Threads that start later inherit the slack. loosen needs CAP_SYS_NICE
// (proc_pid_timerslack_ns(5)), and ignores errors. The unit in systemd/ sets the slack from the start.
func loosen() {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	text := []byte(strconv.FormatInt(slack.Nanoseconds(), 10))
	for _, thread := range threads {
		// The file timerslack_ns is in /proc/TID, and is missing in /proc/PID/task/TID.
		_ = os.WriteFile("/proc/"+thread.Name()+"/timerslack_ns", text, 0)
	}
}
