//go:build race

package ptrace

// isSet replaces isSet of quit.go in builds with the race detector. There, package atomic calls into the detector,
// which is not possible in the midst of a system call.
//
//go:nosplit
//go:norace
func isSet(flag *uint32) bool { return *flag != 0 }
