package profilefmt

import (
	"fmt"
	"math"
	"strconv"

	"github.com/google/pprof/profile"
)

// A scale has the units in which people read a quantity, the smallest first, with the quantity from which each is used.
type scale []struct {
	name       string
	size, from float64
}

var (
	// 100 s read better than 1.67 min.
	durations = scale{
		{"ns", 1, 0}, {"us", 1e3, 999.5}, {"ms", 1e6, 999.5e3},
		{"s", 1e9, 999.5e6}, {"min", 60e9, 120e9}, {"h", 3600e9, 7200e9},
	}
	sizes = scale{
		{"B", 1, 0}, {"kB", 1 << 10, 0.9995 * (1 << 10)}, {"MB", 1 << 20, 0.9995 * (1 << 20)},
		{"GB", 1 << 30, 0.9995 * (1 << 30)}, {"TB", 1 << 40, 0.9995 * (1 << 40)},
	}
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

// quantity prints a value for people, with three digits and the unit that suits. As in PostgreSQL, 1 kB is 1024 bytes.
// Counts are printed whole, and other units as they are.
func quantity(v int64, t *profile.ValueType) string {
	factor, ok := factors[t.Unit]
	if v == 0 || t.Unit == "count" || t.Unit == "" {
		return strconv.FormatInt(v, 10)
	}
	if !ok {
		return strconv.FormatInt(v, 10) + " " + shown(t.Unit)
	}
	x := float64(v) * factor.size
	i := 0
	for i+1 < len(factor.scale) && math.Abs(x) >= factor.scale[i+1].from {
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
