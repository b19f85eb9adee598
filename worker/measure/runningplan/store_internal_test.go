package runningplan

import (
	"strings"
	"testing"
)

// TestBuildIDIsSafeInFileName has texts that would leave the folder, or are too short or too long.
func TestBuildIDIsSafeInFileName(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"01234567": true, "abcdef09abcdef09": true, strings.Repeat("a", 128): true,
		"": false, "0123456": false, strings.Repeat("a", 129): false, "0123456g": false, "ABCDEF09": false, "../../../etc": false,
		"01234567\n": false, "0123456/": false, "01234567\x00": false, "é1234567": false,
	} {
		if got := isBuildID(text); got != want {
			t.Errorf("%q: %t, want %t", text, got, want)
		}
	}
}
