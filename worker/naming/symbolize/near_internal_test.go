package symbolize

import "testing"

func TestEditDistance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b       string
		most, want int
	}{
		{"xlogflush", "xlogflush", 2, 0},
		{"xlogflsh", "xlogflush", 2, 1},
		{"xlgoflush", "xlogflush", 2, 1},
		{"xlogflushh", "xlogflush", 2, 1},
		{"xlogwrite", "xlogflush", 2, 3},
		{"", "ab", 2, 2},
		{"ab", "", 1, 2},
		{"abc", "xyz", 5, 3},
	} {
		if got := editDistance(c.a, c.b, c.most); got != c.want {
			t.Errorf("%q, %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
