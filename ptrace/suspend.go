package ptrace

import (
	"errors"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/thread"
)

// suspendWait limits how long running captures may take to end before the program is suspended.
const suspendWait = 10 * time.Second

// Suspend does for this program what the terminal's stop signal (SIGTSTP) does by default. The program is stopped
// until SIGCONT. If no process could continue it (an orphaned process group), it continues at once.
//
// Suspend first waits until no target is stopped, because the target would stay stopped as long as the program. It also
// waits until no perf event for a sample interrupts a process. New captures and samples wait meanwhile. The error is
// thread.ErrBusy, or the error of a system call. If there is an error, the program was not stopped.
func Suspend() error { return thread.PauseWork(suspendWait, stopProgram) }

// stopProgram stops the program by SIGTTOU, which has the same default action as SIGTSTP. It does not use SIGTSTP itself, and
// leaves its handler in place: a SIGTSTP may come as soon as the program is continued. Without the handler, it would stop
// the program while captures run.
func stopProgram() error {
	runtime.LockOSThread() // a signal that a thread sends to itself is delivered before the call returns
	defer runtime.UnlockOSThread()
	var byDefault, before sigaction
	if err := setAction(unix.SIGTTOU, &byDefault, &before); err != nil {
		return err
	}
	err := unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGTTOU)
	if before != byDefault { // the signal is ignored or has a handler
		err = errors.Join(err, setAction(unix.SIGTTOU, &before, nil))
	}
	return err
}
