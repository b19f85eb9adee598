package waits

// callPrefix stands before the name of a system call in the name of the kernel's function.
const callPrefix = "__arm64_sys_"

// olderCalls returns system calls that newer architectures do not have.
func olderCalls() []call { return nil }

// ordersStores says whether other processors see stores in the order of the program.
const ordersStores = false
