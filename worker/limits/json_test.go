package limits_test

import (
	"strings"
	"testing"

	"pg_stat_backtrace/worker/limits"
)

// TestJSON has texts within the bounds and texts beyond each bound. Brackets and commas in a string do not count.
func TestJSON(t *testing.T) {
	t.Parallel()
	b := limits.JSON{Depth: 3, Elements: 4, Members: 2}
	for text, want := range map[string]bool{
		`{"a":[1,2,{"b":1}],"c":[1,2,3]}`:   true,
		`[[[[]]]]`:                          false,
		`[1,2,3,4,5]`:                       true,
		`[1,2,3,4,5,6]`:                     false,
		`[[1,2,3],[4,5,6]]`:                 false,
		`{"a":1,"b":2,"c":3}`:               true,
		`{"a":1,"b":2,"c":3,"d":4}`:         false,
		`["[[[[,,,,,,\"[[[[","{{{{"]`:       true,
		strings.Repeat(`]`, 10) + `[1,2,3]`: true,
		`"not closed`:                       true,
	} {
		if got := b.Allows([]byte(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}
