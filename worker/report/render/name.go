package render

import (
	"strconv"
	"unicode/utf8"
)

// appendWord appends a name as one word, as the line format of Text requires. Demangled C++ and Rust names have spaces.
// appendWord removes a space after a comma, and replaces other spaces by underscores.
func appendWord(buf []byte, name string, ascii bool) []byte {
	start := len(buf)
	buf = appendName(buf, name, ascii)
	kept := start
	for i := start; i < len(buf); i++ {
		c := buf[i]
		if c == ' ' {
			if kept > start && buf[kept-1] == ',' {
				continue
			}
			c = '_'
		}
		buf[kept] = c
		kept++
	}
	return buf[:kept]
}

// appendName appends a text from a file or process of unknown origin. It escapes invalid UTF-8, and characters that could
// control a terminal or change the display of the text around them. If ascii is set, it escapes all characters outside ASCII.
func appendName(buf []byte, name string, ascii bool) []byte {
	for i := 0; i < len(name); {
		r, size := utf8.DecodeRuneInString(name[i:])
		switch {
		case r == utf8.RuneError && size <= 1:
			buf = append(buf, `\x`...)
			buf = appendHex(buf, uint64(name[i]), 2)
		case r < ' ' || r >= 0x7f && r < 0xa0:
			buf = append(buf, `\x`...)
			buf = appendHex(buf, uint64(r), 2)
		case r < utf8.RuneSelf || !ascii && VisibleRune(r):
			buf = append(buf, name[i:i+size]...)
		case r > 0xffff:
			buf = append(buf, `\U`...)
			buf = appendHex(buf, uint64(r), 8)
		default:
			buf = append(buf, `\u`...)
			buf = appendHex(buf, uint64(r), 4)
		}
		i += size
	}
	return buf
}

func appendHex(buf []byte, v uint64, width int) []byte {
	s := strconv.FormatUint(v, 16)
	for n := len(s); n < width; n++ {
		buf = append(buf, '0')
	}
	return append(buf, s...)
}

// Word returns a name from a file of unknown origin as one word that is safe for a terminal.
func Word(name string) string { return string(appendWord(nil, name, false)) }
