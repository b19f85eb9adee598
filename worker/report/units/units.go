// Package units prints sizes and durations for people. All text outputs use it. JSON and CSV have plain numbers.
package units

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Size returns a number of bytes as PostgreSQL's pg_size_pretty prints it: "8192 bytes", "10 kB", "16 MB". 1 kB is 1024 bytes.
func Size[N int | int64 | uint64](bytes N) string {
	if bytes < 0 {
		return "-" + size(-uint64(bytes))
	}
	return size(uint64(bytes))
}

func size(bytes uint64) string {
	const change, half = 10 * 1024, 9 // PostgreSQL divides to halves of a unit, so that it rounds only once
	if bytes < change {
		return strconv.FormatUint(bytes, 10) + " bytes"
	}
	units := []string{"kB", "MB", "GB", "TB", "PB"}
	halves, i := bytes>>half, 0
	for ; halves >= 2*change-1 && i < len(units)-1; i++ {
		halves >>= 10
	}
	return strconv.FormatUint((halves+1)/2, 10) + " " + units[i]
}

// Duration returns a measured time with three significant digits and a suitable unit: "12.3 us", "1.50 ms", "100 s", "3 min".
// Whole numbers have no decimals.
func Duration(d time.Duration) string {
	// Minutes begin at 120 s, because 100 s is easier to read than 1.67 min.
	units := []struct {
		name       string
		size, from float64
	}{
		{"ns", 1, 0}, {"us", 1e3, 999.5}, {"ms", 1e6, 999.5e3}, {"s", 1e9, 999.5e6}, {"min", 60e9, 120e9}, {"h", 3600e9, 7200e9},
	}
	if d == 0 {
		return "0"
	}
	x, i := float64(d), 0
	for i+1 < len(units) && math.Abs(x) >= units[i+1].from {
		i++
	}
	return threeDigits(x/units[i].size) + " " + units[i].name
}

// threeDigits returns a number with three significant digits; whole numbers and numbers from 100 on without decimals.
func threeDigits(x float64) string {
	switch a := math.Abs(x); {
	case x == math.Trunc(x), a >= 99.95: //nolint:mnd // rounds to 100
		return fmt.Sprintf("%.0f", x)
	case a >= 9.995: //nolint:mnd // rounds to 10
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

// Count returns a number with a noun, which gets an "s" ("es" after an "s") except after 1: "1 gap", "2 gaps", "0 processes".
func Count[N int | int64 | uint64](n N, noun string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(noun, "s"):
		noun += "es"
	default:
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// Plural returns a text with a number. In the text, "%d" is the number, and of each "{one|many}" the first part is used if the number
// is 1, otherwise the second: Plural(1, "%d {stack lacks|stacks lack} frames") is "1 stack lacks frames".
func Plural[N int | int64 | uint64](n N, text string) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "{")
		b.WriteString(strings.ReplaceAll(before, "%d", strconv.FormatInt(int64(n), 10)))
		one, rest, bar := strings.Cut(rest, "|")
		many, rest, end := strings.Cut(rest, "}")
		if !found || !bar || !end {
			return b.String()
		}
		if n == 1 {
			many = one
		}
		b.WriteString(many)
		text = rest
	}
}

// Ahead reports whether since is more than a second after at. Then the two are times of different clocks, and there is no age.
func Ahead(at, since time.Time) bool { return since.Sub(at) > time.Second }

// Age returns a time that has passed as text: "350 ms", "4.5 s", "40 s", "3 min 20 s", "5 h 10 min", "2 d 3 h". Negative: "0 ms".
func Age(d time.Duration) string {
	d = max(0, d)
	two := func(n, m int64, unit, part string) string {
		if m == 0 {
			return fmt.Sprintf("%d %s", n, unit)
		}
		return fmt.Sprintf("%d %s %d %s", n, unit, m, part)
	}
	const day, tenths = 24 * time.Hour, 10
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < tenths*time.Second:
		return strconv.FormatFloat(math.Floor(d.Seconds()*tenths)/tenths, 'f', 1, 64) + " s"
	case d < time.Minute:
		return fmt.Sprintf("%d s", int64(d.Seconds()))
	case d < time.Hour:
		return two(int64(d/time.Minute), int64(d%time.Minute/time.Second), "min", "s")
	case d < day:
		return two(int64(d/time.Hour), int64(d%time.Hour/time.Minute), "h", "min")
	}
	return two(int64(d/day), int64(d%day/time.Hour), "d", "h")
}
