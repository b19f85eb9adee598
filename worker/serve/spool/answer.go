package spool

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/report/render"
)

// Answer is the result of a call, or the warning or error that the call raises.
type Answer struct {
	// Level is "" if the result is Text or Rows. It is "NOTICE" if the result is Rows and the call raises a notice with
	// Message and Hint. Otherwise it is "WARNING" or "ERROR", and there is no result.
	Level string
	// SQLState, Message, Detail and Hint belong to the warning or error. Detail and Hint may be empty.
	SQLState string
	Message  string
	Detail   string
	Hint     string
	// Text is the result if Rows is nil.
	Text string
	// Rows, if not nil, is the result as a table. An empty cell is a NULL.
	Rows [][]string
}

// separator ends each field of an answer except the last one. It is US, the unit separator of ASCII. No field
// contains it.
const separator = "\x1f"

// separators is the size of all separators between the fields of an answer, in bytes.
const separators = 5 * len(separator)

// The separators of a table: RS after each row, GS after each cell except the last one. No cell contains them.
const (
	rowSeparator  = '\x1e'
	cellSeparator = '\x1d'
)

// unicodeEncoding is the name of the server encoding for UTF-8.
const unicodeEncoding = "UTF8"

// encode returns the contents of an answer file for a database with this encoding. The contents are UTF-8 if the database
// uses UTF-8, otherwise ASCII, which every server encoding includes. Other characters then become \u00e9 or \U0001f600.
func (a Answer) encode(encoding string) []byte {
	a = a.checked()
	data := a.fields(encoding)
	if len(data) > limits.MaxAnswer+separators { // possible, because an escape such as \x1f is longer than the character
		data = tooLarge().fields(encoding)
	}
	return data
}

// fields writes the fields of an answer.
func (a Answer) fields(encoding string) []byte {
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

// checked returns the answer a. If a is too large, or is a warning or an error that SQL cannot raise, checked returns
// an error answer in place of a.
func (a Answer) checked() Answer {
	switch {
	case len(a.Message)+len(a.Detail)+len(a.Hint)+len(a.Text)+size(a.Rows) > limits.MaxAnswer:
		return tooLarge()
	case a.Level == "":
		return Answer{Text: a.Text, Rows: a.Rows}
	case a.Level == "NOTICE" && a.Message != "" && a.Rows != nil:
		return Answer{Level: a.Level, Message: a.Message, Hint: a.Hint, Rows: a.Rows}
	case a.Level != "WARNING" && a.Level != "ERROR" || !isSQLState(a.SQLState) || a.Message == "":
		return failure("XX000", fmt.Sprintf("unexpected answer %q %q: %s", a.Level, a.SQLState, a.Message), a.Hint)
	}
	return a
}

func tooLarge() Answer {
	return failure("54000", fmt.Sprintf("the answer is larger than %d bytes", limits.MaxAnswer), "Ask for fewer frames.")
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

// isSQLState reports whether the SQL command RAISE accepts the code. It refuses codes of success.
func isSQLState(s string) bool {
	if len(s) != 5 || strings.HasPrefix(s, "00") {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && (r < 'A' || r > 'Z') }) < 0
}

// clean writes s in a form that is safe as a text of the database. It escapes NUL and other control characters (as
// \x1f), invalid UTF-8, and characters that change the display of the text around them. If the parameter ascii is set,
// it also escapes all other characters outside ASCII.
func clean(b *strings.Builder, s string, ascii bool) {
	if plain(s) {
		b.WriteString(s)
		return
	}
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch format, _ := escape(r, size, ascii); {
		case format == "":
			b.WriteString(s[:size])
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(b, format, s[0])
		default:
			fmt.Fprintf(b, format, r)
		}
		s = s[size:]
	}
}

// escape returns the format of the form that clean writes for a character, and the size of that form in bytes. The format is empty if
// the character stays. size is the size of the character; 1 for RuneError: an invalid byte.
func escape(r rune, size int, ascii bool) (format string, length int) {
	switch {
	case r == utf8.RuneError && size == 1, r < 0x80 && unicode.IsControl(r) && r != '\n' && r != '\t':
		return `\x%02x`, len(`\x00`)
	case r < 0x80, !ascii && render.VisibleRune(r):
		return "", size
	case r > 0xffff:
		return `\U%08x`, len(`\U00000000`)
	}
	return `\u%04x`, len(`\u0000`)
}

// Size returns the number of bytes of a text in an answer for a database with this encoding.
func Size(s, encoding string) (n int) {
	if plain(s) {
		return len(s)
	}
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		_, length := escape(r, size, encoding != unicodeEncoding)
		n, s = n+length, s[size:]
	}
	return n
}

// plain reports whether s is only printable ASCII, tabs and line ends, which is the common case.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\n' && c != '\t' || c >= 0x7f {
			return false
		}
	}
	return true
}
