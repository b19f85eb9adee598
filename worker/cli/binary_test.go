package cli

import (
	"strings"
	"testing"
)

// TestBinaryToTerminal: no command writes a binary profile to a terminal.
func TestBinaryToTerminal(t *testing.T) {
	x := openTerminal(t)
	for _, words := range []string{
		"capture -f pprof 1", "capture --core /none -f pprof", "profile -f pprof 1", "history --record-dir /none -f pprof",
		"memory -f pprof 1", "memory --allocations -f pprof 1", "report /none -f pprof", "waits --stacks 1/100 -f pprof 1",
		"trace malloc -f pprof 1",
	} {
		var stderr strings.Builder
		if status := Main("test", strings.Fields(words), x.slave, &stderr); status != exitUsage ||
			!strings.Contains(stderr.String(), "pprof is binary: write it to a file") {
			t.Errorf("%s: status %d, %s", words, status, stderr.String())
		}
	}
}
