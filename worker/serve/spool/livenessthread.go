package spool

import (
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// livenessThread returns "TID SECONDS": the TID of a thread that lives as long as this process, and the creation time
// of the thread's directory in /proc (since the epoch). The server checks both to see that the worker runs.
//
// The alternative, a read of /proc/PID/stat, fails if the process ends between open and read. Such a read also makes the
// kernel walk all threads. The thread is not the main thread, because the main thread's directory remains until the parent
// has waited for the process. The directory stays open, because the kernel may otherwise recreate it with another time.
var livenessThread = sync.OnceValues(func() (string, error) {
	tids := make(chan int)
	go pin(tids)
	tid := <-tids
	path := fmt.Sprintf("/proc/self/task/%d", tid)
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) // stays open until the process ends
	if err != nil {
		return "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", &os.PathError{Op: "fstat", Path: path, Err: err}
	}
	return fmt.Sprintf("%d %d", tid, st.Mtim.Sec), nil
})

// pin locks its goroutine to a thread, sends the TID, and never returns. On the main thread it starts another pin
// instead.
func pin(tids chan<- int) {
	runtime.LockOSThread()
	if unix.Gettid() != os.Getpid() {
		tids <- unix.Gettid()
		select {}
	}
	other := make(chan int)
	go pin(other)
	tids <- <-other
	runtime.UnlockOSThread()
}
