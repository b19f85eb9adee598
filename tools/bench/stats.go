package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// summary is the distribution of one span, in microseconds.
type summary struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// figure summarizes one span over all rounds, in microseconds. It contains the median over the rounds of each round's
// percentile, the longest single sample, and the range of the rounds' medians (the machine's noise).
type figure struct {
	summary

	Low  float64 `json:"p50_low"`
	High float64 `json:"p50_high"`
}

// percentile returns the nearest-rank percentile of samples, or 0 without samples. It sorts the samples.
func percentile[T cmp.Ordered](samples []T, p int) T {
	if len(samples) == 0 {
		var none T
		return none
	}
	slices.Sort(samples)
	return samples[max(0, (len(samples)*p+99)/100-1)]
}

// mean returns the arithmetic mean and its standard error.
func mean(samples []float64) (mean, standardError float64) {
	n := float64(len(samples))
	if n == 0 {
		return 0, 0
	}
	for _, x := range samples {
		mean += x / n
	}
	squares := 0.0
	for _, x := range samples {
		squares += (x - mean) * (x - mean)
	}
	return mean, math.Sqrt(squares / max(1, n-1) / n)
}

func summarize(samples []float64) summary {
	return summary{percentile(samples, 50), percentile(samples, 99), percentile(samples, 100)}
}

// combine is the figure of the summaries of the rounds.
func combine(rounds []summary) figure {
	pick := func(f func(summary) float64) []float64 {
		values := make([]float64, 0, len(rounds))
		for _, r := range rounds {
			values = append(values, f(r))
		}
		return values
	}
	medians := pick(func(s summary) float64 { return s.P50 })
	if len(medians) == 0 {
		return figure{}
	}
	return figure{
		summary: summary{
			P50: percentile(medians, 50),
			P99: percentile(pick(func(s summary) float64 { return s.P99 }), 50),
			Max: slices.Max(pick(func(s summary) float64 { return s.Max })),
		},
		Low: slices.Min(medians), High: slices.Max(medians),
	}
}

// micros prints microseconds with three significant digits, or all digits before the point: "7.42 µs", "1.99 ms".
func micros(us float64) string {
	switch {
	case us >= 1e6:
		return fmt.Sprintf("%.3g s", us/1e6)
	case us >= 1e3:
		return fmt.Sprintf("%.3g ms", us/1e3)
	default:
		return fmt.Sprintf("%.3g µs", us)
	}
}

// ratio prints a divided by b: "270x", "3.1x", or "-" if one of them is 0.
func ratio(a, b float64) string {
	switch r := a / b; {
	case a == 0 || b == 0:
		return "-"
	case r >= 10:
		return fmt.Sprintf("%.0fx", r)
	default:
		return fmt.Sprintf("%.2gx", r)
	}
}
