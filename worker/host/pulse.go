package host

import "time"

// AlignedInterval is the time between two moments.
const AlignedInterval = 2 * time.Second

// firstMoment is a moment. Its reading of the monotonic clock counts.
//
//nolint:gochecknoglobals // the moments are the program's
var firstMoment = time.Now()

// AlignedDelay returns about d: the time until the moment that is nearest to d from now. Pauses shorter than
// AlignedInterval are not changed.
func AlignedDelay(d time.Duration) time.Duration { return alignedDelay(time.Since(firstMoment), d) }

// alignedDelay is AlignedDelay at a time since firstMoment.
func alignedDelay(now, d time.Duration) time.Duration {
	if d < AlignedInterval {
		return d
	}
	moment := (now + d).Round(AlignedInterval)
	if moment-now <= AlignedInterval/2 {
		moment += AlignedInterval
	}
	return moment - now
}
