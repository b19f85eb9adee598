package symbolize

import "time"

// Deadline is a time limit for waiting. The timer starts with the first wait, because most captures wait for nothing.
// A nil Deadline never expires.
type Deadline struct {
	At    time.Time     // the earliest deadline
	After time.Duration // time from the first wait to the deadline, if that is later than At
	done  chan struct{}
	timer *time.Timer
}

// passed returns a channel that is closed at the deadline.
func (d *Deadline) passed() <-chan struct{} {
	if d == nil {
		return nil
	}
	if d.done == nil {
		d.done = make(chan struct{})
		d.timer = time.AfterFunc(max(d.After, time.Until(d.At)), func() { close(d.done) })
	}
	return d.done
}

// Stop releases the timer when the caller has finished waiting.
func (d *Deadline) Stop() {
	if d.timer != nil {
		d.timer.Stop()
	}
}
