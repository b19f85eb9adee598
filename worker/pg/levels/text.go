package levels

import (
	"bytes"
	"encoding/binary"
	"strings"
	"unicode/utf8"
)

// The encodings of databases (pg_wchar.h) that are treated specially.
const (
	encodingUnknown = -1
	encodingUTF8    = 6
	lastEncoding    = 41
)

// text reads the string at an address, at most limit bytes. Characters outside ASCII are shown if the database's
// encoding is UTF-8, and are escaped otherwise, because all server encodings contain ASCII. cut means that the
// string's end was not read.
func (r *reader) text(memory Memory, addr uint64, limit int) (text string, cut bool) {
	if addr == 0 {
		return "", false
	}
	raw := r.bytes(memory, addr, limit)
	if end := bytes.IndexByte(raw, 0); end >= 0 {
		raw = raw[:end]
	} else {
		cut = true
	}
	switch {
	case ascii(raw):
	case r.databaseEncoding() != encodingUTF8:
		return escape(raw), cut
	case cut:
		raw = raw[:wholeRunes(raw)]
	}
	return string(raw), cut
}

func ascii(raw []byte) bool {
	for _, c := range raw {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// bytes reads up to limit bytes in pieces, because most strings are short, and reading beyond the end of mapped memory fails.
func (r *reader) bytes(memory Memory, addr uint64, limit int) []byte {
	const piece = 256
	var raw []byte
	for len(raw) < limit {
		want := min(piece-int(addr%piece), limit-len(raw))
		at := len(raw)
		raw = append(raw, make([]byte, want)...)
		n := min(max(memory(addr, raw[at:]), 0), want)
		raw = raw[:at+n]
		if n < want || bytes.IndexByte(raw[at:], 0) >= 0 || addr+uint64(want) < addr {
			return raw
		}
		addr += uint64(want)
	}
	return raw
}

// wholeRunes returns the length of raw without its last character, if that is truncated.
func wholeRunes(raw []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(raw); i++ {
		at := len(raw) - i
		if utf8.RuneStart(raw[at]) {
			if !utf8.FullRune(raw[at:]) {
				return at
			}
			break
		}
	}
	return len(raw)
}

// escape writes bytes outside ASCII as \xNN.
func escape(raw []byte) string {
	const digits = "0123456789abcdef"
	var b strings.Builder
	for _, c := range raw {
		if c < utf8.RuneSelf {
			b.WriteByte(c)
			continue
		}
		b.WriteString(`\x`)
		b.WriteByte(digits[c>>4])
		b.WriteByte(digits[c&15])
	}
	return b.String()
}

// databaseEncoding reads the number of the database's encoding, to which the variable DatabaseEncoding (mbutils.c)
// points. A process sets the variable once, before it has any text.
func (r *reader) databaseEncoding() int {
	if r.encoding != 0 {
		return r.encoding
	}
	r.encoding = encodingUnknown
	variable := r.server.encoding.Load()
	if variable == 0 {
		if variable = r.encodingVariable(); variable == 0 {
			return r.encoding
		}
		r.server.encoding.Store(variable)
	}
	pointer, ok := r.liveWord(r.bias + variable)
	var number [numberSize]byte
	if !ok || pointer == 0 || r.live(pointer+uint64(r.layout.encoding), number[:]) < len(number) {
		return r.encoding
	}
	if n := int32(binary.NativeEndian.Uint32(number[:])); n > 0 && n <= lastEncoding {
		r.encoding = int(n)
	}
	return r.encoding
}

// encodingVariable finds the variable DatabaseEncoding, for which a stripped server has no symbol. It reads the code
// of the function GetDatabaseEncoding, which loads the variable and returns the number to which it points. In servers
// that are compiled with -fcf-protection, the function begins with endbr64. encodingVariable returns 0 if the code has
// another form, as on machines other than x86-64.
func (r *reader) encodingVariable() uint64 {
	const (
		mark = "\xf3\x0f\x1e\xfa" // endbr64
		load = 7                  // bytes of mov disp(%rip),%rax
		form = 11                 // bytes of the function without endbr64
	)
	at := r.server.getEncoding
	if at == 0 {
		return 0
	}
	var first [len(mark)]byte
	if r.live(r.bias+at, first[:]) == len(mark) && string(first[:]) == mark {
		at += uint64(len(mark))
	}
	var code [form]byte
	if r.live(r.bias+at, code[:]) < len(code) || string(code[:3]) != "\x48\x8b\x05" ||
		string(code[load:]) != "\x8b\x40"+string([]byte{byte(r.layout.encoding)})+"\xc3" { // one byte holds the offset
		return 0
	}
	return at + load + uint64(int64(int32(binary.LittleEndian.Uint32(code[3:]))))
}
