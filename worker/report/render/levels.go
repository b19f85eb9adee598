package render

import (
	"unicode/utf8"

	"pg_stat_backtrace/worker/naming/backtrace"
)

// maxNote bounds the text of a query or a level in a line of text, in bytes. It does not apply to JSON.
const maxNote = 200

// appendLevel appends a PostgreSQL level (backtrace.Level) as a note in brackets.
func appendLevel(buf []byte, l *backtrace.Level, ascii bool) []byte {
	buf = append(buf, " ["...)
	buf = appendShortened(buf, l.Text, false, ascii)
	return append(buf, ']')
}

// appendSession appends the wait event if frame is the innermost frame (0), and the query if frame is t.QueryFrame, the
// frame that received it.
func appendSession(buf []byte, t *backtrace.Trace, frame int, ascii bool) []byte {
	if frame == 0 && t.Wait.Class != "" {
		buf = append(buf, " [waiting for "...)
		buf = appendName(buf, t.Wait.Class, ascii)
		buf = append(buf, ": "...)
		buf = appendName(buf, t.Wait.Event, ascii)
		buf = append(buf, ']')
	}
	if frame == t.QueryFrame && t.Query != "" {
		buf = append(buf, " [query: "...)
		buf = appendShortened(buf, t.Query, t.QueryCut, ascii)
		buf = append(buf, ']')
	}
	return buf
}

// contextNote returns the levels, the wait event and the query of a frame as one text, without escapes.
func contextNote(t *backtrace.Trace, thread, frame int) string {
	note := ""
	for _, l := range t.Threads[thread].Frames[frame].Levels {
		note = joinNotes(note, l.Text)
	}
	if thread == 0 && frame == 0 && t.Wait.Class != "" {
		note = joinNotes(note, "waiting for "+t.Wait.Class+": "+t.Wait.Event)
	}
	if thread == 0 && frame == t.QueryFrame && t.Query != "" {
		note = joinNotes(note, "query: "+t.Query)
		if t.QueryCut {
			note += "..."
		}
	}
	return note
}

// appendShortened appends at most maxNote bytes of a text. It appends three dots if the text is longer, or if the
// parameter more is set.
func appendShortened(buf []byte, text string, more, ascii bool) []byte {
	if len(text) > maxNote {
		end := maxNote
		for end > maxNote-utf8.UTFMax && !utf8.RuneStart(text[end]) {
			end--
		}
		text, more = text[:end], true
	}
	buf = appendName(buf, text, ascii)
	if more {
		buf = append(buf, "..."...)
	}
	return buf
}
