package console

import (
	"fmt"
	"strings"
	"time"
)

// WhenUsage describes the texts that ParseWhen reads.
const WhenUsage = `"03:00", "yesterday 03:00", "2026-11-28 03:00", "2026-11-28T03:00:00Z", or "-15m" before now`

// ParseWhen reads a time in one of the forms of WhenUsage, or "now". A time without a zone is in the zone of now.
func ParseWhen(s string, now time.Time) (time.Time, error) {
	text := strings.TrimSpace(s)
	if text == "now" {
		return now, nil
	}
	if strings.HasPrefix(text, "-") {
		d, err := time.ParseDuration(text)
		if err != nil {
			return time.Time{}, fmt.Errorf("%q is no time: give %s", s, WhenUsage)
		}
		return now.Add(d), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return t.In(now.Location()), nil
	}
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02T15:04:05", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	day := now
	switch word, rest, _ := strings.Cut(text, " "); word {
	case "today":
		text = rest
	case "yesterday":
		day, text = now.AddDate(0, 0, -1), rest
	}
	if text == "" && s != "" {
		text = "00:00"
	}
	for _, layout := range []string{"15:04", "15:04:05"} {
		if t, err := time.Parse(layout, strings.TrimSpace(text)); err == nil {
			return time.Date(day.Year(), day.Month(), day.Day(), t.Hour(), t.Minute(), t.Second(), 0, now.Location()), nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is no time: give %s", s, WhenUsage)
}
