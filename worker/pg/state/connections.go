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

// OrdinarySlots returns the number of connection slots that are not reserved, so that ordinary roles may use them; 0: it is not known.
func (r *Reader) OrdinarySlots() int {
	// PostgreSQL 16 renamed ReservedBackends to SuperuserReservedConnections, and gave the name ReservedConnections to slots for
	// pg_use_reserved_connections.
	v := r.Integers("MaxConnections", "ReservedBackends", "SuperuserReservedConnections", "ReservedConnections")
	return max(0, v["MaxConnections"]-v["ReservedBackends"]-v["SuperuserReservedConnections"]-v["ReservedConnections"])
}
