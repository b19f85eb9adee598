package queue

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"pg_stat_backtrace/worker/visible"
)

// Printable is s without what a text of the database must not hold: NUL and other control characters but newline and
// tab (they become \x1f), bytes that are no UTF-8, characters that change how the text around them is shown, and, for
// ascii, what is not ASCII (\u00e9).
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
		case r < 0x80, !ascii && visible.Rune(r):
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

// printable makes the texts of a result fit for the database.
func (r Result) printable(ascii bool) Result {
	for _, field := range []*string{&r.Engine, &r.Text, &r.SQLState, &r.Message, &r.Detail, &r.Hint} {
		*field = Printable(*field, ascii)
	}
	return r
}
