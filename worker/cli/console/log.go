package console

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/worker/report/render"
)

// Formats of the worker's log. LogAuto means: journald if journald reads the log, console for a terminal, otherwise json.
const (
	LogAuto    = "auto"
	logConsole = "console"
	logOTel    = "otel"
	logJournal = "journald"
)

// LogFormats are the values of --log-format.
var LogFormats = []string{LogAuto, FormatJSON, logConsole, logOTel, logJournal}

// LogSink returns a writer that accepts lines of JSON, one for each message, and writes them to w in a format of LogFormats.
func LogSink(w io.Writer, format string) (io.Writer, error) {
	if !slices.Contains(LogFormats, format) {
		return nil, fmt.Errorf("--log-format must be %s or %s, not %q", strings.Join(LogFormats[:len(LogFormats)-1], ", "),
			LogFormats[len(LogFormats)-1], format)
	}
	if format == LogAuto {
		format = FormatJSON
		if f, ok := w.(*os.File); ok && render.IsJournal(f, os.Getenv("JOURNAL_STREAM")) {
			format = logJournal
		} else if Terminal(w) {
			format = logConsole
		}
	}
	shown := render.VisibleWriter{To: w} // names of roles, processes and files may have control characters
	switch format {
	case logConsole:
		return zerolog.ConsoleWriter{Out: shown, TimeFormat: time.DateTime}, nil
	case logOTel:
		return render.OTel{To: shown}, nil
	case logJournal:
		return &render.Journal{Else: shown}, nil
	}
	return shown, nil
}

// Logger returns a logger that writes messages of this level and above as lines of JSON to w. It also sets zerolog's global
// formats of times.
func Logger(w io.Writer, level string) (zerolog.Logger, error) {
	lvl, err := zerolog.ParseLevel(level)
	if err != nil || level == "" {
		return zerolog.Nop(), fmt.Errorf("--log-level must be debug, info, warn or error, not %q", level)
	}
	zerolog.DurationFieldUnit = time.Millisecond
	zerolog.TimeFieldFormat = time.RFC3339Nano
	return zerolog.New(w).Level(lvl).With().Timestamp().Logger(), nil
}

// Terminal reports whether w is a terminal (or another character device).
func Terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
