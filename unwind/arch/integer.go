package arch

import "encoding/binary"

// Integer reads the unsigned integer of size bytes (1, 2, 4, 8) that p begins with. It returns false for other sizes.
// p must have that many bytes.
func Integer(order binary.ByteOrder, p []byte, size int) (uint64, bool) {
	switch size {
	case 8:
		return order.Uint64(p), true
	case 4:
		return uint64(order.Uint32(p)), true
	case 2:
		return uint64(order.Uint16(p)), true
	case 1:
		return uint64(p[0]), true
	}
	return 0, false
}
