package debuginfod

import "time"

// EventKind says what has happened.
type EventKind int

// The kinds of events.
const (
	// Started: a server has begun to send a file.
	Started EventKind = iota
	// Progress: a download goes on. It is told about once a second.
	Progress
	// Arrived: the file is complete, verified, and in the cache.
	Arrived
	// Missing: a server does not have the file.
	Missing
	// Failed: a server could not be asked, or what it sent was not taken.
	Failed
	// Paused: a server has failed so often that it will not be asked for a while (Took).
	Paused
)

// Event is what Config.OnEvent is told.
type Event struct {
	Kind EventKind
	// File and ID are what is asked for.
	File Kind
	ID   string
	// Server is the server's URL, without a password.
	Server string
	// Bytes are there of Total, which is 0 if the server did not say.
	Bytes, Total int64
	// Took is the time since the request; for Paused, how long the pause is.
	Took time.Duration
	// Err is why it failed, for Failed and Paused.
	Err error
}

// tell hands an event on.
func (c *Client) tell(e Event) {
	if c.cfg.OnEvent != nil {
		c.cfg.OnEvent(e)
	}
}
