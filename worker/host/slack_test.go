package host

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
)

// TestLoosen checks that the kernel may delay the timers of every thread, including the runtime's monitor thread.
func TestLoosen(t *testing.T) {
	status, err := process.ReadStatus(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if status.CapEff&(1<<unix.CAP_SYS_NICE) == 0 {
		t.Skip("takes CAP_SYS_NICE")
	}
	threads, err := process.Threads(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	loosen()
	for _, thread := range threads {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(thread) + "/timerslack_ns")
		if os.IsNotExist(err) {
			continue // it has ended
		}
		if got := strings.TrimSpace(string(text)); err != nil || got != strconv.FormatInt(slack.Nanoseconds(), 10) {
			t.Errorf("thread %d: %q ns, %v", thread, got, err)
		}
	}
}
