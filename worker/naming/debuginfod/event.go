package debuginfod

import "time"

// EventKind is the kind of an event.
type EventKind int

// The kinds of events.
const (
	// Started: a server has begun to send a file.
	Started EventKind = iota
	// Progress: a download is running. It is reported about once a second.
	Progress
	// Arrived: the file is complete, verified, and in the cache.
	Arrived
	// Missing: a server does not have the file.
	Missing
	// Failed: a server could not be asked, or its file was rejected.
	Failed
	// Paused: a server has failed so often that it is not used for a while (Event.Took).
	Paused
)

// Event is the argument of Config.OnEvent.
type Event struct {
	Kind EventKind
	// File and ID identify the requested file.
	File Kind
	ID   string
	// Server is the server's URL, without a password.
	Server string
	// Bytes is the number of bytes received so far. Total is the size, or 0 if the server did not send it.
	Bytes, Total int64
	// Took is the time since the request. For Paused it is the length of the pause.
	Took time.Duration
	// Err is the error, for Failed and Paused.
	Err error
}

// tell passes an event to Config.OnEvent.
func (c *Client) tell(e Event) {
	if c.cfg.OnEvent != nil {
		c.cfg.OnEvent(e)
	}
}
