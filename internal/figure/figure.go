// Package figure lets a passing test print a figure: how much it compared, or which share was equal.
// tools/testreport prints it. Share and GoPrograms say how much it compares, by the environment. The package must not
// know the meaning of the figures.
package figure

import (
	"fmt"
	"strings"
	"testing"
)

// Key is the attribute of a test that holds a figure.
const Key = "figure"

// Printf prints a figure of the test in one line, and logs it.
func Printf(tb testing.TB, format string, arguments ...any) {
	tb.Helper()
	text := strings.Join(strings.Fields(fmt.Sprintf(format, arguments...)), " ")
	tb.Log(text)
	tb.Attr(Key, text)
}
