package functrace

import (
	"bufio"
	"strings"
	"testing"

	"pg_stat_backtrace/ptrace/measure/probe"
)

// TestLastRangeOfLatency: the last range has no end.
func TestLastRangeOfLatency(t *testing.T) {
	t.Parallel()
	l := &probe.Latency{Returns: 2, Total: 2400e9, Longest: 2400e9}
	l.Buckets[probe.Buckets-2], l.Buckets[probe.Buckets-1] = 1, 1
	var b strings.Builder
	out := bufio.NewWriter(&b)
	latency(out, l, 2)
	if err := out.Flush(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "\n      < 9.16 min          1 #") || !strings.Contains(b.String(), "\n     >= 9.16 min          1 #") {
		t.Errorf("%s", b.String())
	}
}
