package cli

import (
	"errors"
	"fmt"
	"io"

	"pg_stat_backtrace/worker/report/render"
)

// errReported marks a failure that has been told already.
var errReported = errors.New("failed")

// errLimited marks a result that is incomplete because of a limit, and has been printed.
var errLimited = errors.New("incomplete")

// tellf writes a message for the user. If even that fails, there is nobody left
// to be told.
func tellf(stderr io.Writer, format string, args ...any) {
	text := fmt.Sprintf(format, args...) // it may have names of other people's files and functions
	_, _ = fmt.Fprintf(stderr, "pg_stat_backtrace: %s\n", render.VisibleText(text))
}
