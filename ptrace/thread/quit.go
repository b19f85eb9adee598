//go:build !race

package thread

import "sync/atomic"

// IsSet reads a flag that another goroutine sets by means of package atomic. The compiler makes a plain load of it,
// so it needs no stack.
//
//go:nosplit
//go:norace
func IsSet(flag *uint32) bool { return atomic.LoadUint32(flag) != 0 }
