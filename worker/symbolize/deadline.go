package symbolize

import "time"

// Deadline is a time until which an answer waits for what is not known yet. It begins when it is first waited for,
// since nearly every answer waits for nothing; a nil one never comes.
type Deadline struct {
	At    time.Time     // not before
	After time.Duration // nor so soon after the waiting has begun
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

// Stop is for when nobody waits any more.
func (d *Deadline) Stop() {
	if d.timer != nil {
		d.timer.Stop()
	}
}
