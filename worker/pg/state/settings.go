package state

import "encoding/binary"

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
