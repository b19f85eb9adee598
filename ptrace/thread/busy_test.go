package thread

import (
	"errors"
	"testing"
	"time"
)

// TestRestWaitsForWork checks that a rest waits for current work, and that new work waits. If the rest takes too long
// to begin, all work continues.
func TestRestWaitsForWork(t *testing.T) {
	var a activity
	a.begin()
	began := make(chan bool)
	next := func() {
		a.begin()
		a.end()
		close(began)
	}
	rested := errors.New("rested")
	do := func() error {
		go next()
		select {
		case <-began:
			return errors.New("something has begun meanwhile")
		case <-time.After(20 * time.Millisecond):
		}
		if err := a.suspend(time.Minute, func() error { return nil }); err != nil {
			return err
		}
		return rested
	}
	if err := a.suspend(time.Millisecond, do); !errors.Is(err, ErrBusy) {
		t.Errorf("while something is under way: %v", err)
	}
	a.begin()
	ended := make(chan error)
	go func() { ended <- a.suspend(time.Minute, do) }()
	for requested := false; !requested; time.Sleep(100 * time.Microsecond) {
		a.mu.Lock()
		requested = a.resting != nil
		a.mu.Unlock()
	}
	a.join()
	for range 3 {
		select {
		case err := <-ended:
			t.Fatalf("it has not waited: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
		a.end()
	}
	if err := <-ended; !errors.Is(err, rested) {
		t.Error(err)
	}
	<-began
}
