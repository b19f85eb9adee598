package console

import (
	"errors"
	"fmt"
	"io"

	"pg_stat_backtrace/worker/report/render"
)

// ErrReported marks a failure that has been told already.
var ErrReported = errors.New("failed")

// ErrLimited marks a result that is incomplete because of a limit, and has been printed.
var ErrLimited = errors.New("incomplete")

// Tellf writes a message for the user. An error of the write is ignored, because it could not be shown either.
func Tellf(stderr io.Writer, format string, args ...any) {
	text := fmt.Sprintf(format, args...) // it may have names of other people's files and functions
	_, _ = fmt.Fprintf(stderr, "pg_stat_backtrace: %s\n", render.VisibleText(text))
}
