// Package figure lets a test tell a figure that is to be seen although the test passed: how much it compared, or which
// share was equal. internal/testreport prints it. It must not know what is measured.
package figure

import (
	"fmt"
	"strings"
	"testing"
)

// Key is the attribute of a test that holds a figure.
const Key = "figure"

// Printf tells a figure of the test, in one line, and logs it.
func Printf(tb testing.TB, format string, arguments ...any) {
	tb.Helper()
	text := strings.Join(strings.Fields(fmt.Sprintf(format, arguments...)), " ")
	tb.Log(text)
	tb.Attr(Key, text)
}
