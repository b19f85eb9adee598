package gomaxprocs

import (
	"os"
	"strconv"
	"time"
)

// slack is by how much the kernel may delay the program's timers to serve several at once (PR_SET_TIMERSLACK in
// prctl(2); 50 µs otherwise). The Go runtime has a thread that looks at a program that works every 20 µs and the slack:
// a sixth of what a capture takes of a busy machine's processors. Nothing that this program waits for needs better.
const slack = time.Millisecond

// loosen sets the slack of all threads that there are; those to come inherit it. It takes CAP_SYS_NICE
// (proc_pid_timerslack_ns(5)), and is left without a word: systemd/ has it set for the worker from the start.
func loosen() {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	text := []byte(strconv.FormatInt(slack.Nanoseconds(), 10))
	for _, thread := range threads {
		// The threads have no such file in the directory of their process.
		_ = os.WriteFile("/proc/"+thread.Name()+"/timerslack_ns", text, 0)
	}
}
