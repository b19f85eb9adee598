package verb

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/report/render"
)

// settings reads the session's settings that the request carries. Unknown settings come from a newer extension, and
// have no effect.
func settings(s map[string]string) (capture.Options, error) {
	o := capture.Options{PreferNonStop: true}
	for name, value := range s {
		var err error
		switch name {
		case "max_frames":
			o.MaxFrames, err = number(name, value, limits.MaxFrames, "")
		case "timeout":
			var ms int
			ms, err = number(name, value, limits.MaxTimeout, " milliseconds")
			o.Deadline = time.Duration(ms) * time.Millisecond
		case "threads":
			o.AllThreads, err = boolean(name, value)
		case "context":
			var on bool
			on, err = boolean(name, value)
			o.NoContext = !on
		case "format":
			err = checkFormat(name, value)
		case "nonstop":
			o.NonStop, err = boolean(name, value)
		}
		if err != nil {
			return o, err
		}
	}
	return o, nil
}

func number(name, value string, limit int, unit string) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > limit {
		return 0, invalid(name, value, fmt.Sprintf("It is a number from 1 to %d%s.", limit, unit))
	}
	return n, nil
}

// boolean accepts the same values as PostgreSQL's parse_bool: 1, 0, on, off, and each beginning of true, false, yes and
// no.
func boolean(name, value string) (bool, error) {
	v := strings.ToLower(value)
	begins := func(word string) bool { return v != "" && strings.HasPrefix(word, v) }
	switch {
	case v == "on", v == "1", begins("true"), begins("yes"):
		return true, nil
	case v == "off", v == "of", v == "0", begins("false"), begins("no"):
		return false, nil
	}
	return false, invalid(name, value, "It is on or off.")
}

func invalid(name, value, hint string) error {
	return &render.Fault{
		SQLState: render.InvalidParameterValue,
		Message:  fmt.Sprintf("invalid value for parameter \"pg_stat_backtrace.%s\": %q", name, shortened(value)),
		Hint:     hint,
	}
}

// maxValue bounds the part of a caller's value that a message repeats, in bytes.
const maxValue = 60

func shortened(value string) string {
	if len(value) <= maxValue {
		return value
	}
	end := maxValue
	for end > 0 && !utf8.RuneStart(value[end]) {
		end--
	}
	return value[:end] + "..."
}
