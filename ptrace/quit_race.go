//go:build race

package ptrace

// isSet is that of quit.go. With the race detector package atomic calls into the detector, which is not possible in the
// midst of a system call.
//
//go:nosplit
//go:norace
func isSet(flag *uint32) bool { return *flag != 0 }
