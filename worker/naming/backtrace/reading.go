package backtrace

import (
	"fmt"
	"time"
)

// A ReadingError means that a stack was copied, but a file needed to unwind it was not read in time. The reading
// continues in the background, and the next capture uses its result.
type ReadingError struct {
	File  string // base name
	After time.Duration
}

func (e *ReadingError) Error() string {
	return fmt.Sprintf("%s has not been read within %s", e.File, e.After.Round(time.Millisecond))
}
