package store

import (
	"strings"
	"unicode/utf8"
)

// Bounds of a text, in bytes.
const (
	maxInput  = 64 << 10
	maxOutput = 4 << 10
)

const (
	removed = "?"
	more    = "..."
)

// Normalized returns the text of SQL statements with a question mark for each literal, without comments, and with single spaces.
// Of most utility statements, such as ALTER ROLE, only the command's name is kept. The result has at most some 4 kB.
func Normalized(text string) string {
	l := lexer{in: text}
	if len(text) > maxInput {
		l.in, l.cut = text[:maxInput], true
	}
	return l.run()
}

// lexer reads one text.
type lexer struct {
	in  string
	at  int
	cut bool // the field in has only the first part of the text
	out strings.Builder
	gap bool // white space or a comment precedes the next token
}

type kind int

const (
	end kind = iota
	word
	quoted  // a name in double quotes
	literal // also a number
	parameter
	other     // a character of an operator or of punctuation
	ambiguous // where this token ends is not certain
)

// run writes the statements of the text, one after the other, and returns the result.
func (l *lexer) run() string {
	begins := true // the next token is the first one of a statement
	var tag []string
	inTag := false
	flush := func() {
		if inTag {
			l.put(tagOf(tag))
		}
		inTag, tag = false, nil
	}
	for {
		k, text := l.next()
		if k == end || k == ambiguous || l.out.Len() > maxOutput {
			flush()
			return l.result(k != end || l.cut)
		}
		if k == other && text == ";" {
			flush()
			l.gap = false
			l.put(text)
			l.gap, begins = true, true
			continue
		}
		switch {
		case begins && k == other && text == "(": // the statement's first word follows, as in (SELECT ...) UNION ...
		case begins && (k != word || !isQuery(text)):
			begins, inTag = false, true
		default:
			begins = false
		}
		if inTag {
			if len(tag) < maxTag {
				if k != word {
					text = ""
				}
				tag = append(tag, strings.ToUpper(text))
			}
			continue
		}
		if k == literal {
			text = removed
		}
		l.put(text)
	}
}

// result returns the written text. It appends "..." if the end of the statements is missing.
func (l *lexer) result(missing bool) string {
	text := l.out.String()
	if len(text) > maxOutput {
		text, missing = text[:maxOutput], true
		for i := 1; i < utf8.UTFMax && i < len(text); i++ { // do not split a character
			if utf8.RuneStart(text[len(text)-i]) {
				if !utf8.FullRuneInString(text[len(text)-i:]) {
					text = text[:len(text)-i]
				}
				break
			}
		}
	}
	text = strings.ToValidUTF8(text, removed)
	if missing {
		text += more
	}
	return text
}

// put writes a token, and a space before it if gap is set.
func (l *lexer) put(text string) {
	if l.gap && l.out.Len() > 0 {
		l.out.WriteByte(' ')
	}
	l.gap = false
	l.out.WriteString(text)
}

// next returns the next token. It skips white space and comments.
func (l *lexer) next() (kind, string) {
	l.skip()
	if l.at >= len(l.in) {
		return end, ""
	}
	begin, c := l.at, l.in[l.at]
	switch {
	case c == '\'':
		return l.literal(false)
	case c == '"':
		l.name()
		return quoted, l.in[begin:l.at]
	case c == '$':
		return l.dollar()
	case isDigit(c), c == '.' && isDigit(l.peek(1)):
		l.number()
		return literal, ""
	case isLetter(c):
		for l.at < len(l.in) && (isLetter(l.in[l.at]) || isDigit(l.in[l.at]) || l.in[l.at] == '$') {
			l.at++
		}
		return l.word(l.in[begin:l.at])
	}
	l.at++
	return other, l.in[begin:l.at]
}

// word returns the word in the parameter text. If text is the prefix of a literal, it returns the literal: e'...', b'...', x'...',
// n'...', u&'...'.
func (l *lexer) word(text string) (kind, string) {
	switch lower := strings.ToLower(text); {
	case lower == "e" && l.peek(0) == '\'':
		return l.literal(true)
	case (lower == "b" || lower == "x" || lower == "n") && l.peek(0) == '\'':
		return l.literal(false)
	case lower == "u" && l.peek(0) == '&' && l.peek(1) == '\'':
		l.at++
		return l.literal(false)
	}
	return word, text
}

func (l *lexer) peek(n int) byte {
	if l.at+n < len(l.in) {
		return l.in[l.at+n]
	}
	return 0
}

// skip skips white space and comments, which nest.
func (l *lexer) skip() {
	for l.at < len(l.in) {
		switch c := l.in[l.at]; {
		case isSpace(c):
			l.at++
		case c == '-' && l.peek(1) == '-':
			for l.at < len(l.in) && l.in[l.at] != '\n' && l.in[l.at] != '\r' {
				l.at++
			}
		case c == '/' && l.peek(1) == '*':
			l.comment()
		default:
			return
		}
		l.gap = true
	}
}

func (l *lexer) comment() {
	for depth := 0; l.at < len(l.in); {
		switch two := l.in[l.at:min(l.at+2, len(l.in))]; two {
		case "/*":
			depth++
			l.at += 2
		case "*/":
			depth--
			l.at += 2
			if depth == 0 {
				return
			}
		default:
			l.at++
		}
	}
}

// literal reads a literal in single quotes. escapes is set for a literal with the prefix e, in which a backslash escapes the next
// character. In another literal, the meaning of \' depends on standard_conforming_strings: its end is not known, and the result is
// ambiguous.
func (l *lexer) literal(escapes bool) (kind, string) {
	for l.at++; l.at < len(l.in); l.at++ {
		switch c := l.in[l.at]; {
		case c == '\\' && escapes:
			l.at++
		case c == '\\' && l.peek(1) == '\'':
			l.put(removed)
			return ambiguous, ""
		case c == '\'' && l.peek(1) == '\'':
			l.at++
		case c == '\'':
			l.at++
			return l.goOn(escapes)
		}
	}
	l.at = len(l.in)
	return literal, ""
}

// goOn reads the further parts of a literal if escapes is set (see the method literal); otherwise it does nothing. If only white
// space with a line end is between two literals, SQL makes one literal of them.
func (l *lexer) goOn(escapes bool) (kind, string) {
	if !escapes {
		return literal, ""
	}
	at, gap := l.at, l.gap
	l.skip()
	if l.peek(0) == '\'' && strings.ContainsAny(l.in[at:l.at], "\n\r") {
		return l.literal(true)
	}
	l.at, l.gap = at, gap
	return literal, ""
}

// name reads a name in double quotes.
func (l *lexer) name() {
	for l.at++; l.at < len(l.in); l.at++ {
		if l.in[l.at] != '"' {
			continue
		}
		if l.peek(1) != '"' {
			l.at++
			return
		}
		l.at++
	}
}

// dollar reads a parameter such as $1, or a dollar-quoted literal such as $tag$...$tag$.
func (l *lexer) dollar() (kind, string) {
	begin := l.at
	l.at++
	if isDigit(l.peek(0)) {
		for isDigit(l.peek(0)) {
			l.at++
		}
		return parameter, l.in[begin:l.at]
	}
	for isLetter(l.peek(0)) || l.at > begin+1 && isDigit(l.peek(0)) {
		l.at++
	}
	if l.peek(0) != '$' {
		if l.at == len(l.in) { // the text was cut within the mark that begins a literal, such as $tag$
			return literal, ""
		}
		l.at = begin + 1
		return other, "$"
	}
	l.at++
	mark := l.in[begin:l.at]
	if n := strings.Index(l.in[l.at:], mark); n >= 0 {
		l.at += n + len(mark)
	} else {
		l.at = len(l.in)
	}
	return literal, ""
}

// number skips a number, and letters that follow it, such as those of 0x1f or 1e5.
func (l *lexer) number() {
	for ; l.at < len(l.in); l.at++ {
		c := l.in[l.at]
		sign := (c == '+' || c == '-') && isDigit(l.peek(1)) && (l.in[l.at-1] == 'e' || l.in[l.at-1] == 'E')
		if !isDigit(c) && !isLetter(c) && c != '.' && !sign {
			return
		}
	}
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
func isSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }
func isLetter(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c >= utf8.RuneSelf
}
