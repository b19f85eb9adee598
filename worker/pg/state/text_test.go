package state

import (
	"math"
	"testing"
)

// TestText: foreign bytes become valid UTF-8, and a text that fills its place counts as cut.
func TestText(t *testing.T) {
	for _, c := range []struct {
		in, want string
		cut      bool
	}{
		{"", "", false},
		{"ab\x00cdef", "ab", false},
		{"a\xffb\x00cd", "a\uFFFDb", false},
		{"abc\x00", "abc", true},
		{"ab\xc3\x00", "ab", true}, // the server has cut a character
		{"abc", "abc", true},       // no final zero
		{"\x00", "", true},
	} {
		if got, cut := text([]byte(c.in)); got != c.want || cut != c.cut {
			t.Errorf("%q: %q %v, want %q %v", c.in, got, cut, c.want, c.cut)
		}
	}
}

// TestStamp: times that no server has are absent.
func TestStamp(t *testing.T) {
	for _, n := range []uint64{0, math.MaxUint64, 1 << 63} {
		if got := stamp(n); got != nil {
			t.Errorf("%d: %v", n, got)
		}
	}
	if got := stamp(1); got == nil || got.Year() != 2000 || got.Nanosecond() != 1000 {
		t.Errorf("1: %v", got)
	}
}
