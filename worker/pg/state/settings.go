package state

import (
	"bytes"
	"encoding/binary"
)

// Integers returns the values of variables of type int in the server's memory, such as MaxConnections. A name that the
// server does not export, or that cannot be read, is absent.
func (r *Reader) Integers(names ...string) map[string]int {
	values := make(map[string]int, len(names))
	variables, err := r.server.Program.Variables(names...)
	if err != nil {
		return values
	}
	for _, name := range names {
		var n [4]byte
		if at := variables[name]; at != 0 && r.full(at, n[:]) == nil {
			values[name] = int(int32(binary.NativeEndian.Uint32(n[:])))
		}
	}
	return values
}

// Text returns the value of a variable that points to a string in the server's memory, such as SyncRepStandbyNames, up to 256 bytes
// of it. It is empty if the server does not export the variable, or if the string cannot be read.
func (r *Reader) Text(name string) string {
	const most, page = 256, 4096
	variables, err := r.server.Program.Variables(name)
	var pointer [8]byte
	if err != nil || variables[name] == 0 || r.full(variables[name], pointer[:]) != nil {
		return ""
	}
	at := binary.NativeEndian.Uint64(pointer[:])
	if at == 0 {
		return ""
	}
	// The string may end close to memory that is not mapped: read up to the end of its page first.
	b := make([]byte, most)
	if first := min(most, page-int(at%page)); r.full(at, b[:first]) != nil {
		return ""
	} else if first < most && bytes.IndexByte(b[:first], 0) < 0 && r.full(at+uint64(first), b[first:]) != nil {
		return ""
	}
	if end := bytes.IndexByte(b, 0); end >= 0 {
		b = b[:end]
	}
	return string(b)
}
