package queue

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"pg_stat_backtrace/worker/report/render"
)

// Printable returns s in a form that is safe as a text of the database. It escapes control characters other than
// newline and tab (as \x1f), invalid UTF-8, and characters that change the display of the text around them. If the
// parameter ascii is set, it also escapes all other characters outside ASCII (as \u00e9).
func Printable(s string, ascii bool) string {
	odd := func(r rune) bool { return r >= 0x7f || r < ' ' && r != '\n' && r != '\t' }
	if strings.IndexFunc(s, odd) < 0 {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1, r < 0x80 && unicode.IsControl(r) && r != '\n' && r != '\t':
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case r < 0x80, !ascii && render.VisibleRune(r):
			b.WriteString(s[:size])
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		s = s[size:]
	}
	return b.String()
}

// printable makes the texts of a result safe for the database.
func (r Result) printable(ascii bool) Result {
	for _, field := range []*string{&r.Engine, &r.Text, &r.SQLState, &r.Message, &r.Detail, &r.Hint} {
		*field = Printable(*field, ascii)
	}
	return r
}
