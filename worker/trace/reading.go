package trace

import (
	"fmt"
	"time"
)

// A ReadingError means that there is no trace though a stack was copied: a file by which it is read has not been read
// in time. That goes on, and what has been read is kept for the next capture.
type ReadingError struct {
	File  string // base name
	After time.Duration
}

func (e *ReadingError) Error() string {
	return fmt.Sprintf("%s has not been read within %s", e.File, e.After.Round(time.Millisecond))
}
