package render

import (
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// VisibleRune reports whether a character is visible as itself and does not change the display of other characters. It is false for
// control characters, which can control a terminal, for format characters, which can change the order of characters, join words or
// be invisible, and for separators of lines and paragraphs, which can look like a line end.
func VisibleRune(r rune) bool {
	return !unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
}

// VisibleLine returns a text with a question mark in place of each character that is not VisibleRune, also of line ends.
func VisibleLine(s string) string {
	return strings.Map(func(r rune) rune {
		if VisibleRune(r) {
			return r
		}
		return '?'
	}, s)
}

// VisibleText does the same as VisibleLine, but keeps line feeds and tabs.
func VisibleText(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || VisibleRune(r) {
			return r
		}
		return '?'
	}, s)
}

// VisibleJSON escapes the characters in encoded JSON that are not VisibleRune and that encoders do not escape: DEL, and characters
// outside ASCII. b must be UTF-8. VisibleJSON returns b itself if there are no such characters.
func VisibleJSON(b []byte) []byte {
	at := hidden(b)
	if at < 0 {
		return b
	}
	out := append(make([]byte, 0, len(b)+64), b[:at]...)
	for b = b[at:]; len(b) > 0; {
		r, size := utf8.DecodeRune(b)
		if r < utf8.RuneSelf && r != del || r == utf8.RuneError && size == 1 || VisibleRune(r) {
			out = append(out, b[:size]...)
		} else {
			out = appendEscape(out, r)
		}
		b = b[size:]
	}
	return out
}

// del is the only control character that encoders of JSON do not escape.
const del = 0x7f

// hidden returns the index of the first character that VisibleJSON escapes; -1: there is none.
func hidden(b []byte) int {
	for i := 0; i < len(b); {
		if b[i] < utf8.RuneSelf && b[i] != del {
			i++
			continue
		}
		r, size := utf8.DecodeRune(b[i:])
		if (r != utf8.RuneError || size > 1) && !VisibleRune(r) {
			return i
		}
		i += size
	}
	return -1
}

// appendEscape appends the escape \uXXXX of a character. A character above U+FFFF needs two of them (a surrogate pair).
func appendEscape(out []byte, r rune) []byte {
	const digits = "0123456789abcdef"
	units := []rune{r}
	if r > 0xffff {
		r -= 0x10000
		units = []rune{0xd800 + r>>10, 0xdc00 + r&0x3ff}
	}
	for _, u := range units {
		out = append(out, '\\', 'u', digits[u>>12&15], digits[u>>8&15], digits[u>>4&15], digits[u&15])
	}
	return out
}

// VisibleWriter escapes invisible characters in JSON, see VisibleJSON, and writes the result to To. A character must not be split
// between two calls of Write.
type VisibleWriter struct{ To io.Writer }

// Write escapes and writes b.
func (w VisibleWriter) Write(b []byte) (int, error) {
	if _, err := w.To.Write(VisibleJSON(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// maxQueryLine is the number of characters of a query that OneLine keeps.
const maxQueryLine = 200

// OneLine returns the text of a query as one line that is safe to print, cut to maxQueryLine characters.
func OneLine(query string) string {
	line := []rune(VisibleLine(strings.Join(strings.Fields(query), " ")))
	if len(line) > maxQueryLine {
		line = append(line[:maxQueryLine:maxQueryLine], []rune("...")...)
	}
	return string(line)
}
