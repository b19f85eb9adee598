// Package pulse aligns the periodic work of an idle program. Work that is due at about the same time runs at the same
// moment, so that it wakes the program once. The moments of each program are different: the workers of one host do not all query
// their servers at the same time.
//
// The package does not know the work.
package pulse

import "time"

// Interval is the time between two moments.
const Interval = 2 * time.Second

// start is a moment. Its reading of the monotonic clock counts.
//
//nolint:gochecknoglobals // the moments are the program's
var start = time.Now()

// After returns about d: the time until the moment that is nearest to d from now. Pauses shorter than Interval are not
// changed.
func After(d time.Duration) time.Duration { return after(time.Since(start), d) }

// after is After at a time since start.
func after(now, d time.Duration) time.Duration {
	if d < Interval {
		return d
	}
	moment := (now + d).Round(Interval)
	if moment-now <= Interval/2 {
		moment += Interval
	}
	return moment - now
}
