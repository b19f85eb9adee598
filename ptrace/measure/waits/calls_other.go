//go:build !amd64 && !arm64

package waits

// callPrefix is the beginning of the name of the kernel function of a system call.
const callPrefix = "__sys_"

// sendCall returns no system call.
func sendCall() call { return call{} }

// waitCalls returns no system calls: on this architecture waits are timed by switches only.
func waitCalls() (calls []call, read int) { return nil, 0 }

// ordersStores is true if other processors see the stores of a processor in the order of the program.
const ordersStores = false
