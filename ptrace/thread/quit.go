//go:build !race

package thread

import "sync/atomic"

// IsSet reads a flag that another goroutine sets with package atomic. The compiler turns atomic.LoadUint32 into a plain load,
// which needs no stack.
//
//go:nosplit
//go:norace
func IsSet(flag *uint32) bool { return atomic.LoadUint32(flag) != 0 }
