//go:build race

package thread

// IsSet replaces IsSet of quit.go in builds with the race detector. There, package atomic calls into the detector,
// which is not possible in the midst of a system call.
//
//go:nosplit
//go:norace
func IsSet(flag *uint32) bool { return *flag != 0 }
