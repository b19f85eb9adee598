//go:build !amd64 && !arm64

package waits

// callPrefix stands before the name of a system call in the name of the kernel's function.
const callPrefix = "__sys_"

// sendCall returns no system call.
func sendCall() call { return call{} }

// waitCalls returns no system calls: on this architecture waits are timed by switches only.
func waitCalls() (calls []call, read int) { return nil, 0 }

// ordersStores says whether other processors see stores in the order of the program.
const ordersStores = false
