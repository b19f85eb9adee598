package units

import (
	"math"
	"testing"
	"time"
)

func TestUnits(t *testing.T) {
	t.Parallel()
	// As SELECT pg_size_pretty(n) prints them.
	for n, want := range map[int64]string{
		0: "0 bytes", 1: "1 bytes", 10239: "10239 bytes", 10240: "10 kB", 10751: "10 kB", 10752: "11 kB", -10240: "-10 kB", -5: "-5 bytes",
		10485247: "10239 kB", 10485248: "10 MB", 10<<20 + 524_000: "10 MB", 5 << 30: "5120 MB", 3 << 40: "3072 GB", 20 << 40: "20 TB", 20 << 50: "20 PB",
	} {
		if got := Size(n); got != want {
			t.Errorf("%d bytes: %s, want %s", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0", 5: "5 ns", 999: "999 ns", 1500: "1.50 us", 12345: "12.3 us", 999_600: "1.00 ms", 123_456_789: "123 ms",
		100 * time.Second: "100 s", 150 * time.Second: "2.50 min", 3 * time.Hour: "3 h", -1500: "-1.50 us", math.MinInt64: "-2562048 h",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%d ns: %s, want %s", d, got, want)
		}
	}
	if got := Count(1, "gap") + Count(2, "gap") + Count(0, "process"); got != "1 gap2 gaps0 processes" {
		t.Errorf("counts: %s", got)
	}
	for d, want := range map[time.Duration]string{
		-1: "0 ms", 350 * time.Millisecond: "350 ms", 4599 * time.Millisecond: "4.5 s", 40 * time.Second: "40 s", 200 * time.Second: "3 min 20 s",
		310 * time.Minute: "5 h 10 min", 51 * time.Hour: "2 d 3 h", 48 * time.Hour: "2 d",
	} {
		if got := Age(d); got != want {
			t.Errorf("%d ns: %s, want %s", d, got, want)
		}
	}
}
