//go:build !amd64 && !arm64

package waitsbpf

// callPrefix stands before the name of a system call in the name of the kernel's function.
const callPrefix = "__sys_"

// A call is a system call in which a server waits.
type call struct {
	name   string
	number int
}

// waitCalls returns no system calls: on this architecture waits are timed by switches only.
func waitCalls() (calls []call, read int) { return nil, 0 }
