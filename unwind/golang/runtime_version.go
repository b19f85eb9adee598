package golang

import (
	"bytes"
	"encoding/binary"
)

// buildInfoMagic is the beginning of the linker's data in .go.buildinfo (debug/buildinfo).
const buildInfoMagic = "\xff Go buildinf:"

// maxVersion bounds the version's text.
const maxVersion = 256

// Version returns the version of Go that built a program, in the form of runtime.Version. It finds the version in the
// contents of the section .go.buildinfo, and returns "" if it is unknown. Before Go 1.18 the section contains only a
// pointer to the text, so the callback read must read the program's memory, or its file by the same addresses.
func Version(section []byte, order binary.ByteOrder, read Read) string {
	const header, inline = 32, 2
	if len(section) < header || !bytes.HasPrefix(section, []byte(buildInfoMagic)) {
		return ""
	}
	if section[15]&inline != 0 {
		n, used := binary.Uvarint(section[header:])
		if used <= 0 || n > maxVersion || n > uint64(len(section)-header-used) {
			return ""
		}
		return string(section[header+used:][:n])
	}
	if section[14] != 8 {
		return ""
	}
	var head [16]byte
	if !read(order.Uint64(section[16:]), head[:]) {
		return ""
	}
	addr, n := order.Uint64(head[:]), order.Uint64(head[8:])
	if n == 0 || n > maxVersion {
		return ""
	}
	text := make([]byte, n)
	if !read(addr, text) {
		return ""
	}
	return string(text)
}
