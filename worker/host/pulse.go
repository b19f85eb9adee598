package host

import "time"

// AlignedInterval is the time between two moments at which AlignedDelay lets periodic work run.
const AlignedInterval = 2 * time.Second

// firstMoment is the first such moment, by the monotonic clock; the others follow at AlignedInterval.
//
//nolint:gochecknoglobals // the moments are the program's
var firstMoment = time.Now()

// AlignedDelay returns a duration near d, after which a moment comes: a multiple of AlignedInterval after firstMoment.
// If d is shorter than AlignedInterval, it returns d.
func AlignedDelay(d time.Duration) time.Duration { return alignedDelay(time.Since(firstMoment), d) }

// alignedDelay is AlignedDelay at the time now, measured from firstMoment.
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
