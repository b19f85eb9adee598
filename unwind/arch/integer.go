package arch

import "encoding/binary"

// Integer reads the unsigned integer of size bytes at the beginning of p. The result is false if size is not 1, 2, 4 or
// 8. p must have at least size bytes.
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
