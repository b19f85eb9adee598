package thread

import (
	"errors"
	"sync"
	"time"
)

// ErrBusy means that a capture or a sample did not end in time, for example because it is blocked in the kernel.
var ErrBusy = errors.New("a capture does not end")

// work counts the work of this program that PauseWork waits for.
//
//nolint:gochecknoglobals // a program is suspended as a whole
var work activity

// BeginWork waits for the end of a pause. It then registers work that delays the next pause until EndWork is called.
func BeginWork() { work.begin() }

// JoinWork registers a part of work that is already registered, so it does not wait. The part also needs a call of EndWork, and
// may end after the work itself.
func JoinWork() { work.join() }

// EndWork ends what BeginWork or JoinWork registered.
func EndWork() { work.end() }

// PauseWork waits until no work is under way, for at most the duration most, and calls the function do. New work waits
// meanwhile. If another pause is requested already, PauseWork does nothing. The error is ErrBusy or the error of do.
func PauseWork(most time.Duration, do func() error) error { return work.suspend(most, do) }

// activity counts the work that must end before the program is stopped: parties is the number of its parts. A rest is a
// time without work.
type activity struct {
	mu      sync.Mutex
	parties int
	resting chan struct{} // closed at the end of a requested or active rest; else nil
	idle    chan struct{} // closed when parties is 0; nil if no goroutine waits for that
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

// suspend calls the function do when no work is active, and delays new work. If another rest is requested, it does
// nothing.
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
	close(a.resting)
	a.resting, a.idle = nil, nil
	return err
}
