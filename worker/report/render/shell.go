package render

import (
	"strings"
	"unicode"
)

// ShellWord quotes a word for a shell if it needs quotes. It then replaces unprintable characters by ?.
func ShellWord(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:@%"
	if strings.Trim(s, plain) == "" {
		return s
	}
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
