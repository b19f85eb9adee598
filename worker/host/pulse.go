package host

import "time"

// AlignedInterval is the time between two moments at which AlignedDelay lets periodic work run.
const AlignedInterval = 2 * time.Second

// firstMoment is the first moment at which AlignedDelay lets periodic work run, by the monotonic clock. The next
// moments follow at intervals of AlignedInterval.
//
//nolint:gochecknoglobals // the moments are the program's
var firstMoment = time.Now()

// AlignedDelay returns a duration near d that ends at such a moment: firstMoment plus a multiple of AlignedInterval. If
// d is shorter than AlignedInterval, it returns d.
func AlignedDelay(d time.Duration) time.Duration { return alignedDelay(time.Since(firstMoment), d) }

// alignedDelay does the work of AlignedDelay. The parameter now is the time since firstMoment.
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
