// Package figure has functions with which a passing test prints a figure, such as the number of things that it has
// compared, or the share of equal ones. tools/testreport collects these figures. Share and GoPrograms say how much a
// test compares, depending on the environment. The package must not know the meaning of the figures.
package figure

import (
	"fmt"
	"strings"
	"testing"
)

// Key is the name of the test attribute that has a figure; see testing.TB.Attr.
const Key = "figure"

// Printf prints a figure of the test in one line, and logs it.
func Printf(tb testing.TB, format string, arguments ...any) {
	tb.Helper()
	text := strings.Join(strings.Fields(fmt.Sprintf(format, arguments...)), " ")
	tb.Log(text)
	tb.Attr(Key, text)
}
