package console

import (
	"errors"
	"fmt"
	"io"

	"pg_stat_backtrace/worker/report/render"
)

// ErrReported is the error of a command whose failure has been printed already.
var ErrReported = errors.New("failed")

// ErrLimited is the error of a command whose printed result is incomplete because of a limit.
var ErrLimited = errors.New("incomplete")

// Tellf writes a message for the user. An error of the write is ignored, because it could not be shown either.
func Tellf(stderr io.Writer, format string, args ...any) {
	text := fmt.Sprintf(format, args...) // names of other users' files and functions may have control characters
	_, _ = fmt.Fprintf(stderr, "pg_stat_backtrace: %s\n", render.VisibleText(text))
}
