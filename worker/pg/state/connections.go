package state

import "encoding/binary"

// maxBackends is PostgreSQL's limit of max_connections.
const maxBackends = 1<<18 - 1

// MaxConnections returns the server's parameter max_connections; 0: it is not known.
func (r *Reader) MaxConnections() int {
	variables, err := r.server.Program.Variables("MaxConnections")
	if err != nil || variables["MaxConnections"] == 0 {
		return 0
	}
	var b [4]byte
	if r.full(variables["MaxConnections"], b[:]) != nil {
		return 0
	}
	if n := binary.NativeEndian.Uint32(b[:]); n >= 1 && n <= maxBackends {
		return int(n)
	}
	return 0
}
