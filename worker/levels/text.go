package levels

import (
	"bytes"
	"encoding/binary"
	"strings"
	"unicode/utf8"
)

// Encodings of databases (pg_wchar.h) that matter here.
const (
	encodingUnknown = -1
	encodingUTF8    = 6
	lastEncoding    = 41
)

// text reads the string at an address, at most limit bytes of it, in the database's encoding: what is not ASCII is
// shown as it is if that is UTF-8, and else escaped, for the server's encodings all have ASCII in them. cut says that
// the string's end was not seen.
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
	if r.encoding != encodingUTF8 {
		return escape(raw), cut
	}
	if cut {
		raw = raw[:wholeRunes(raw)]
	}
	return string(raw), cut
}

// bytes reads up to limit bytes, by pieces: few strings are long, and where the memory ends nothing can be read.
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

// wholeRunes returns the length without a character that the end cut in two.
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

// escape writes what is not ASCII as \xNN.
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

// databaseEncoding reads what the function GetDatabaseEncoding (mbutils.c) returns, by its code: it loads the pointer
// DatabaseEncoding, a variable that no symbol table of a stripped server names, and from there the number. Code of
// another shape, as on other machines than x86-64, leaves it unknown.
func (r *reader) databaseEncoding() int {
	var code [11]byte
	if r.server.getEncoding == 0 {
		return encodingUnknown
	}
	at := r.bias + r.server.getEncoding
	if r.in.Live(at, code[:]) < len(code) {
		return encodingUnknown
	}
	const load = 7 // bytes of mov disp(%rip),%rax
	if string(code[:3]) != "\x48\x8b\x05" || string(code[load:]) != "\x8b\x40\x08\xc3" {
		return encodingUnknown
	}
	variable := at + load + uint64(int64(int32(binary.LittleEndian.Uint32(code[3:]))))
	entry, ok := r.liveWord(variable)
	if !ok || entry == 0 {
		return encodingUnknown
	}
	var number [4]byte
	if r.in.Live(entry+8, number[:]) < len(number) {
		return encodingUnknown
	}
	n := int32(binary.NativeEndian.Uint32(number[:]))
	if n < 0 || n > lastEncoding {
		return encodingUnknown
	}
	return int(n)
}
