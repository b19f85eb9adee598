package render

import (
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// VisibleRune reports whether a character shows as itself and leaves those around it alone. Control characters can drive
// a terminal. Format characters can turn the order of what follows them, join words, or hide; separators of lines and
// paragraphs can begin a line that is none.
func VisibleRune(r rune) bool {
	return !unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
}

// VisibleLine returns a foreign text with a question mark for each character that VisibleRune refuses, line
// ends included.
func VisibleLine(s string) string {
	return strings.Map(func(r rune) rune {
		if VisibleRune(r) {
			return r
		}
		return '?'
	}, s)
}

// VisibleText is as VisibleLine, but keeps line ends and tabs.
func VisibleText(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || VisibleRune(r) {
			return r
		}
		return '?'
	}, s)
}

// VisibleJSON escapes, in encoded JSON that is UTF-8, the characters that are not visible and that encoders leave as
// they are: DEL, and characters beyond ASCII. It returns b itself if there are none.
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

// hidden returns where the first of those characters is, -1 if there is none.
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

// appendEscape appends \uXXXX, two of them for a character beyond the first plane.
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

// VisibleWriter escapes invisible characters as JSON does, and writes the result to To. Each Write must hold whole characters.
type VisibleWriter struct{ To io.Writer }

// Write writes b.
func (w VisibleWriter) Write(b []byte) (int, error) {
	if _, err := w.To.Write(VisibleJSON(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// maxQueryLine is how many characters of a query OneLine keeps.
const maxQueryLine = 200

// OneLine makes the text of a query safe to print on a line, and cuts it.
func OneLine(query string) string {
	line := []rune(VisibleLine(strings.Join(strings.Fields(query), " ")))
	if len(line) > maxQueryLine {
		line = append(line[:maxQueryLine:maxQueryLine], []rune("...")...)
	}
	return string(line)
}
