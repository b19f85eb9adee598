package console

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"pg_stat_backtrace/worker/report/render"
)

// ErrReported is the error of a command whose failure has been printed already.
var ErrReported = errors.New("failed")

// ErrLimited is the error of a command whose printed result is incomplete because of a limit.
var ErrLimited = errors.New("incomplete")

// Tellf writes a message for the user. An error of the write is ignored, because it could not be shown either.
func Tellf(stderr io.Writer, format string, args ...any) {
	text := fmt.Sprintf(format, args...) // names of other users' files and functions may have control characters
	_, _ = fmt.Fprintf(stderr, "pg_stat_backtrace: %s\n", bounded(render.VisibleText(text)))
}

// bounded removes the middle of each line that has more than 1000 characters. Arguments of any length get into the texts of errors.
func bounded(text string) string {
	const first, last = 800, 200
	if len(text) <= first+last {
		return text
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if runes := []rune(line); len(runes) > first+last {
			lines[i] = string(runes[:first]) + "…" + string(runes[len(runes)-last:])
		}
	}
	return strings.Join(lines, "\n")
}

// Quoted returns a text in quotation marks, for a message. It shortens a text of more than 60 characters.
func Quoted(text string) string {
	const most = 60
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most]) + "…"
	}
	return strconv.Quote(text)
}
