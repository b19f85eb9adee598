package spool

import (
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// livenessThread returns a thread of this process that lives as long as the process, and when its directory in /proc
// was made, as "TID SECONDS" (since the epoch), by which the server knows at one look that the worker runs.
//
// A read of /proc/PID/stat, the other way to know, fails when the process ends between the opening of the file and the
// reading, and costs the kernel a walk through all threads. The thread is not the main one, whose directory is still
// there when nobody has waited for the end of the process. The directory is held open: the kernel makes another one,
// with another time, for one that it has forgotten.
var livenessThread = sync.OnceValues(func() (string, error) {
	moored := make(chan int)
	go pin(moored)
	tid := <-moored
	path := fmt.Sprintf("/proc/self/task/%d", tid)
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) // until the end of the process
	if err != nil {
		return "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", &os.PathError{Op: "fstat", Path: path, Err: err}
	}
	return fmt.Sprintf("%d %d", tid, st.Mtim.Sec), nil
})

// pin keeps the thread it runs on, tells its TID, and stays; on the main thread it looks for another one.
func pin(moored chan<- int) {
	runtime.LockOSThread()
	if unix.Gettid() != os.Getpid() {
		moored <- unix.Gettid()
		select {}
	}
	other := make(chan int)
	go pin(other)
	moored <- <-other
	runtime.UnlockOSThread()
}
