package ptrace

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/snapshot"
)

// noticed are blocking system calls, and their results if the process is stopped meanwhile. The calls that signal(7)
// lists as returning EINTR without a handler do so. All other calls continue for the rest of their time.
var noticed = []struct {
	call      string
	interrupt bool       // a stop ends it with EINTR
	end       unix.Errno // its result without a stop
	helped    bool       // ended by another process, which does not wait for it to begin
}{
	{"epoll_wait", true, 0, false},
	{"epoll_pwait", true, 0, false},
	{"semop", true, 0, true},
	{"semtimedop", true, unix.EAGAIN, false},
	{"sigtimedwait", true, unix.EAGAIN, false},
	{"recv-timeout", true, unix.EAGAIN, false},
	{"io_getevents", true, 0, false},
	{"io_uring_enter", true, unix.ETIME, false},
	{"poll", false, 0, false},
	{"ppoll", false, 0, false},
	{"select", false, 0, false},
	{"pselect", false, 0, false},
	{"nanosleep", false, 0, false},
	{"clock_nanosleep", false, 0, false},
	{"msgrcv", false, 0, true},
	{"futex", false, unix.ETIMEDOUT, false},
	{"read", false, 0, true},
	{"recv", false, 0, true},
	{"inotify", false, 0, true},
	{"waitpid", false, 0, true},
	{"fcntl-lock", false, 0, true},
	{"timerfd", false, 0, false},
}

func noticeProgram(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "notice")
	if out, err := exec.Command("gcc", "-O1", "-o", program, "testdata/notice.c").CombinedOutput(); err != nil {
		t.Skipf("no C compiler, or not for this program: %v\n%s", err, out)
	}
	if err := os.Chmod(filepath.Dir(program), 0o755); err != nil {
		t.Fatal(err)
	}
	return program
}

// TestStopCutsLongCalls checks system calls that are stopped after a part of their work. They must return this part,
// as doc/safety.md says below its table. Without a stop they must do all of the work.
func TestStopCutsLongCalls(t *testing.T) {
	program := noticeProgram(t)
	const all = 1 << 20
	for _, engine := range []string{"none", snapshot.EngineStop, snapshot.EngineBlocked} {
		var result int
		var errno unix.Errno
		for range 20 { // on a busy machine a call can have ended before it is stopped
			result, errno, _ = disturbed(t, exec.Command(program, "write"), engine, 300*time.Millisecond)
			if engine != snapshot.EngineStop || result < all {
				break
			}
		}
		if errno != 0 || result <= 0 || (result < all) != (engine == snapshot.EngineStop) {
			t.Errorf("%s: %d of %d bytes written, %v", engine, result, all, errno)
		}
	}
}

// TestStopNoticedByTarget captures processes in the middle of system calls, with every engine, and checks the results
// of these calls.
func TestStopNoticedByTarget(t *testing.T) {
	program := noticeProgram(t)
	const lasting = 300 * time.Millisecond
	for _, tt := range noticed {
		for _, engine := range []string{"none", snapshot.EngineStop, snapshot.EngineBlocked, snapshot.EngineRunning} {
			t.Run(tt.call+" "+engine, func(t *testing.T) {
				t.Parallel()
				want := tt.end
				if engine == snapshot.EngineStop && tt.interrupt {
					want = unix.EINTR
				}
				var result, ms int
				var errno unix.Errno
				for range 20 { // on a busy machine a call can have ended before it is stopped
					result, errno, ms = disturbed(t, exec.Command(program, tt.call), engine, lasting)
					if errno == want || errno != tt.end || ms < int(lasting.Milliseconds()) {
						break
					}
				}
				if errno != want {
					t.Errorf("ended with %d, %v instead of %v, after %d ms", result, errno, want, ms)
				}
				if want != unix.EINTR && !tt.helped && ms < int(lasting.Milliseconds())-10 {
					t.Errorf("ended after %d ms instead of %v", ms, lasting)
				}
			})
		}
	}
	var interrupted []string
	for _, tt := range noticed {
		if tt.interrupt {
			interrupted = append(interrupted, tt.call)
		}
	}
	figure.Printf(t, "a stop interrupts %s, and none of %d others; without a stop nothing is interrupted",
		strings.Join(interrupted, ", "), len(noticed)-len(interrupted))
}

// disturbed makes a process call a system call, captures it during the call, and returns the result and the duration
// in milliseconds.
func disturbed(t *testing.T, command *exec.Cmd, engine string, lasting time.Duration) (int, unix.Errno, int) {
	c := startChild(t, command)
	until(t, "the process sleeps, or has ended", func() bool { s := stateOf(t, c.pid); return s == 'S' || s == 'Z' })
	begin := time.Now()
	for i := 0; i < 3 && time.Since(begin) < lasting/3; i++ {
		switch engine {
		case snapshot.EngineStop:
			_, _ = Capture(t.Context(), anyTarget(c.pid), snapshot.Options{Deadline: patience}) // it may have ended
		case snapshot.EngineBlocked:
			_, _ = observe.Observe(t.Context(), anyTarget(c.pid), snapshot.Options{Deadline: lasting / 5})
		case snapshot.EngineRunning:
			eventFor(t, c.pid, lasting/20) // Observe would read the sleeping thread instead
		}
	}
	var result, errno, ms int
	line := c.line(t)
	if _, err := fmt.Sscan(line, &result, &errno, &ms); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return result, unix.Errno(errno), ms
}

// eventFor has the kernel watch a thread as it does for a sample of a running thread.
func eventFor(t *testing.T, tid int, span time.Duration) {
	t.Helper()
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK, Sample: uint64(100 * time.Microsecond),
		Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Bits: unix.PerfBitExcludeHv | unix.PerfBitExcludeKernel,
	}
	fd, err := unix.PerfEventOpen(&attr, tid, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return // it may have ended, or events are not permitted
	}
	time.Sleep(span)
	_ = unix.Close(fd)
}

// TestNoticedAsDocumented: doc/safety.md's table has each of these system calls, in the row that it belongs to, and
// no others.
func TestNoticedAsDocumented(t *testing.T) {
	text, err := os.ReadFile("../doc/safety.md")
	if err != nil {
		t.Fatal(err)
	}
	const head = "| system call | engine `stop` | `blocked`, `running` |\n| --- | --- | --- |\n"
	_, table, ok := strings.Cut(string(text), head)
	rows := strings.SplitN(table, "\n", 3)
	if !ok || len(rows) < 3 {
		t.Fatal("there is no such table")
	}
	documented := map[string]bool{} // whether it is interrupted
	for i, row := range rows[:2] {
		cells := strings.Split(row, " | ")
		if len(cells) != 3 || strings.HasPrefix(cells[1], "`EINTR`") != (i == 0) || cells[2] != "nothing |" {
			t.Errorf("row %d: %q", i, cells)
		}
		for call := range strings.SplitSeq(strings.TrimPrefix(cells[0], "| "), ", ") {
			documented[strings.Trim(call, "`")] = i == 0
		}
	}
	other := map[string]string{"recv-timeout": "sockets with `SO_RCVTIMEO", "fcntl-lock": "fcntl` locks"}
	for _, n := range noticed {
		call := cmp.Or(other[n.call], n.call)
		if interrupted, ok := documented[call]; !ok || interrupted != n.interrupt {
			t.Errorf("%s: documented %v, interrupted %v", n.call, ok, interrupted)
		}
		delete(documented, call)
	}
	if len(documented) > 0 {
		t.Errorf("documented, and not tried: %v", documented)
	}
}
