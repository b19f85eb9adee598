package spool

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"pg_stat_backtrace/worker/visible"
)

// Answer is what the call returns or raises.
type Answer struct {
	// Level is "" when Text is the result, else "WARNING" or "ERROR".
	Level string
	// SQLState, Message, Detail and Hint are those of the warning or error; the last two may be empty.
	SQLState string
	Message  string
	Detail   string
	Hint     string
	// Text is the result.
	Text string
	// Rows, if not nil, is the result instead of Text: a table. An empty cell is a NULL.
	Rows [][]string
}

// separator ends each field of an answer but the last: US, the unit separator of ASCII. No field holds one.
const separator = "\x1f"

// The separators of a table: RS after each row, GS after each cell but the last. No cell holds one.
const (
	rowSeparator  = '\x1e'
	cellSeparator = '\x1d'
)

// maxAnswer bounds an answer in bytes. It is read into the server's memory, and tmpfs is memory too.
const maxAnswer = 8 << 20

// unicodeEncoding is the name of the encoding that has every character.
const unicodeEncoding = "UTF8"

// encode makes the contents of an answer file, for a database of the given
// encoding: UTF-8 where the database has that, else ASCII, which every server
// encoding includes; other characters are then written as \u00e9 or \U0001f600.
func (a Answer) encode(encoding string) []byte {
	a = a.checked()
	var b strings.Builder
	b.Grow(len(a.Text) + len(a.Message) + len(a.Detail) + len(a.Hint) + 64)
	for i, field := range []string{a.Level, a.SQLState, a.Message, a.Detail, a.Hint, a.Text} {
		if i > 0 {
			b.WriteString(separator)
		}
		clean(&b, field, encoding != unicodeEncoding)
	}
	for i, row := range a.Rows {
		if i > 0 {
			b.WriteByte(rowSeparator)
		}
		for j, cell := range row {
			if j > 0 {
				b.WriteByte(cellSeparator)
			}
			clean(&b, cell, encoding != unicodeEncoding)
		}
	}
	return []byte(b.String())
}

// checked replaces what SQL could not raise.
func (a Answer) checked() Answer {
	switch {
	case len(a.Message)+len(a.Detail)+len(a.Hint)+len(a.Text)+size(a.Rows) > maxAnswer:
		return failure("54000", fmt.Sprintf("the answer is larger than %d bytes", maxAnswer), "Ask for fewer frames.")
	case a.Level == "":
		return Answer{Text: a.Text, Rows: a.Rows}
	case a.Level != "WARNING" && a.Level != "ERROR" || !isSQLState(a.SQLState) || a.Message == "":
		return failure("XX000", fmt.Sprintf("unexpected answer %q %q: %s", a.Level, a.SQLState, a.Message), a.Hint)
	}
	return a
}

func size(rows [][]string) (n int) {
	for _, row := range rows {
		for _, cell := range row {
			n += len(cell) + 1
		}
	}
	return n
}

func failure(state, message, hint string) Answer {
	return Answer{Level: "ERROR", SQLState: state, Message: message, Hint: hint}
}

// isSQLState accepts the codes that RAISE does, without those of success.
func isSQLState(s string) bool {
	if len(s) != 5 || strings.HasPrefix(s, "00") {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && (r < 'A' || r > 'Z') }) < 0
}

// clean writes s without what a text of the database must not hold: NUL and
// other controls (as \x1f), bytes that are no UTF-8, characters that change how
// the text around them is shown, and, for ascii, what is not ASCII.
func clean(b *strings.Builder, s string, ascii bool) {
	if plain(s) {
		b.WriteString(s)
		return
	}
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1, r < 0x80 && unicode.IsControl(r) && r != '\n' && r != '\t':
			fmt.Fprintf(b, `\x%02x`, s[0])
		case r < 0x80, !ascii && visible.Rune(r):
			b.WriteString(s[:size])
		case r > 0xffff:
			fmt.Fprintf(b, `\U%08x`, r)
		default:
			fmt.Fprintf(b, `\u%04x`, r)
		}
		s = s[size:]
	}
}

// plain is the common case: printable ASCII and line ends.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\n' && c != '\t' || c >= 0x7f {
			return false
		}
	}
	return true
}
