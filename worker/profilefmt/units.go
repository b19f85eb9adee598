package profilefmt

import (
	"fmt"
	"math"
	"strconv"

	"github.com/google/pprof/profile"
)

// A scale has the units in which people read a quantity, the smallest first.
type scale []struct {
	name string
	size float64
}

var (
	durations = scale{{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"min", 60e9}, {"h", 3600e9}}
	sizes     = scale{{"B", 1}, {"kB", 1 << 10}, {"MB", 1 << 20}, {"GB", 1 << 30}, {"TB", 1 << 40}}
)

// factors are the units of pprof: the scale of each, and its size in the scale's first unit.
var factors = map[string]struct {
	scale scale
	size  float64
}{
	"nanoseconds": {durations, 1}, "ns": {durations, 1}, "nanosecond": {durations, 1},
	"microseconds": {durations, 1e3}, "us": {durations, 1e3}, "microsecond": {durations, 1e3},
	"milliseconds": {durations, 1e6}, "ms": {durations, 1e6}, "millisecond": {durations, 1e6},
	"seconds": {durations, 1e9}, "s": {durations, 1e9}, "second": {durations, 1e9},
	"bytes": {sizes, 1}, "byte": {sizes, 1}, "B": {sizes, 1},
	"kilobytes": {sizes, 1 << 10}, "kB": {sizes, 1 << 10}, "KB": {sizes, 1 << 10},
	"megabytes": {sizes, 1 << 20}, "MB": {sizes, 1 << 20},
}

// quantity prints a value for people: three digits and the unit that suits, as PostgreSQL names units of memory (1 kB is
// 1024 bytes). Counts are printed whole, and other units as they are.
func quantity(v int64, t *profile.ValueType) string {
	factor, ok := factors[t.Unit]
	if !ok {
		if t.Unit == "count" || t.Unit == "" {
			return strconv.FormatInt(v, 10)
		}
		return strconv.FormatInt(v, 10) + " " + printable(t.Unit)
	}
	x := float64(v) * factor.size
	i := 0
	for i+1 < len(factor.scale) && math.Abs(x) >= factor.scale[i+1].size*0.9995 {
		i++
	}
	return threeDigits(x/factor.scale[i].size) + " " + factor.scale[i].name
}

// threeDigits prints a number with three significant digits, and whole numbers as such.
func threeDigits(x float64) string {
	switch a := math.Abs(x); {
	case x == math.Trunc(x), a >= 99.95:
		return fmt.Sprintf("%.0f", x)
	case a >= 9.995:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

// plus adds two values, and stops at the largest and the smallest number instead of passing it.
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
