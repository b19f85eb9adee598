package profilefmt

import (
	"math"
	"strconv"
	"time"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/worker/report/units"
)

// Units of pprof profiles: sizes in bytes, and durations in nanoseconds.
//
//nolint:gochecknoglobals // read only
var (
	sizes = map[string]float64{
		"bytes": 1, "byte": 1, "B": 1, "kilobytes": 1 << 10, "kB": 1 << 10, "KB": 1 << 10, "megabytes": 1 << 20, "MB": 1 << 20,
	}
	durations = map[string]float64{
		"nanoseconds": 1, "ns": 1, "nanosecond": 1, "microseconds": 1e3, "us": 1e3, "microsecond": 1e3,
		"milliseconds": 1e6, "ms": 1e6, "millisecond": 1e6, "seconds": 1e9, "s": 1e9, "second": 1e9,
	}
)

// quantity returns a value as text for people, with a suitable unit. Counts have no unit. Unknown units are not converted.
func quantity(v int64, t *profile.ValueType) string {
	size, isSize := sizes[t.Unit]
	duration, isDuration := durations[t.Unit]
	switch {
	case v == 0 || t.Unit == "count" || t.Unit == "":
		return strconv.FormatInt(v, 10)
	case isSize:
		return units.Size(product(v, size))
	case isDuration:
		return units.Duration(time.Duration(product(v, duration)))
	}
	return strconv.FormatInt(v, 10) + " " + shown(t.Unit)
}

// product returns v times factor, limited to the range of int64.
func product(v int64, factor float64) int64 {
	switch x := float64(v) * factor; {
	case factor == 1:
		return v
	case x >= math.MaxInt64:
		return math.MaxInt64
	case x <= math.MinInt64:
		return math.MinInt64
	default:
		return int64(x)
	}
}

// plus returns a plus b, limited to the range of int64.
func plus(a, b int64) int64 {
	switch sum := a + b; {
	case a > 0 && b > 0 && sum < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && sum >= 0:
		return math.MinInt64
	default:
		return sum
	}
}
