package ptrace

import (
	"errors"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrBusy is Suspend's error if the kernel does not end a capture.
var ErrBusy = errors.New("a capture does not end")

// suspendWait limits how long running captures may take to end before the program is suspended.
const suspendWait = 10 * time.Second

// Suspend does for this program what the terminal's stop signal (SIGTSTP) does by default. The program is stopped
// until SIGCONT. If no process could continue it (an orphaned process group), it continues at once.
//
// Suspend waits for a moment without a stopped target, which would stay stopped as long. It also waits until no event
// or sampler interrupts a process repeatedly. New captures and samples wait meanwhile. The error is ErrBusy, or the
// error of a system call. The program was not stopped in these cases.
func Suspend() error { return work.suspend(suspendWait, stopProgram) }

// stopProgram stops the program by another stop signal of the terminal, which has the same default action as SIGTSTP.
// The handler of SIGTSTP stays. A SIGTSTP may come as soon as the program is continued. Its default action would then
// stop the program when captures have begun again.
func stopProgram() error {
	runtime.LockOSThread() // a signal to a thread itself is there when the call returns
	defer runtime.UnlockOSThread()
	var byDefault, before sigaction
	if err := setAction(unix.SIGTTOU, &byDefault, &before); err != nil {
		return err
	}
	err := unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGTTOU)
	if before != byDefault { // it is ignored
		err = errors.Join(err, setAction(unix.SIGTTOU, &before, nil))
	}
	return err
}

// work is the activity for which Suspend waits.
//
//nolint:gochecknoglobals // a program is suspended as a whole
var work = activity{samplers: make(map[*Sampler]bool)}

// activity counts the work that must end before the program is stopped.
type activity struct {
	mu       sync.Mutex
	parties  int
	samplers map[*Sampler]bool // the running samplers
	resting  chan struct{}     // closed at the end of a requested or active rest; else nil
	idle     chan struct{}     // closed when there are no parties any more; nil without a waiting goroutine
}

// begin waits for the end of a rest. It then registers an activity that delays the next rest until end is called.
func (a *activity) begin() {
	a.mu.Lock()
	for a.resting != nil {
		ended := a.resting
		a.mu.Unlock()
		<-ended
		a.mu.Lock()
	}
	a.parties++
	a.mu.Unlock()
}

// join registers a part of a registered activity. The part may last longer than the activity.
func (a *activity) join() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.parties++
}

func (a *activity) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.parties--; a.parties == 0 && a.idle != nil {
		close(a.idle)
		a.idle = nil
	}
}

// know registers a sampler, which rests together with the others until the returned function is called. Each of its
// batches begins and ends as activity.
func (a *activity) know(s *Sampler) (forget func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.samplers[s] = true
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.samplers, s)
	}
}

// suspend calls do when no work is active, and delays new work. If another rest is requested, it does nothing.
func (a *activity) suspend(most time.Duration, do func() error) error {
	a.mu.Lock()
	if a.resting != nil {
		a.mu.Unlock()
		return nil
	}
	a.resting = make(chan struct{})
	idle := make(chan struct{})
	if a.parties == 0 {
		close(idle)
	} else {
		a.idle = idle
	}
	told := make([]*Sampler, 0, len(a.samplers))
	for s := range a.samplers {
		s.suspend()
		told = append(told, s)
	}
	a.mu.Unlock()

	err := ErrBusy
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-idle:
		err = do()
	case <-timer.C:
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range told {
		s.resume()
	}
	close(a.resting)
	a.resting, a.idle = nil, nil
	return err
}
